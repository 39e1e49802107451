// Conversion of arrays on the GPU: gluon_gc_convert of core/abi.h.
#pragma once

#include <cstddef>

#include "core/abi.h"
#include "cuda/driver.h"

namespace gluon_gc {
namespace cuda {

void convert(const gluon_gc_conversion* conversions, std::size_t count, Stream stream);

}  // namespace cuda
}  // namespace gluon_gc
