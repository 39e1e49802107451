// The arguments of blocktopk's kernels.
#pragma once

#include "core/compressors/blocktopk/format.h"
#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
struct BlocktopkEncoding : Encoding<T> {
  BlocktopkFormat format;
};

template <typename T>
struct BlocktopkDecoding : Decoding<T> {
  BlocktopkFormat format;
};

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
