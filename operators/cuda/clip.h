// Clipping on the GPU: gluon_gc_clip of core/abi.h.
#pragma once

#include <cstddef>

#include "core/abi.h"

namespace gluon_gc {
namespace cuda {

std::size_t clip_workspace(const gluon_gc_values* arrays, std::size_t count);
void clip(const gluon_gc_values* arrays, std::size_t count, const gluon_gc_clipping& clipping);

}  // namespace cuda
}  // namespace gluon_gc
