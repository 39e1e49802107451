// The arguments of blockwise's kernels.
#pragma once

#include "core/compressors/blockwise/format.h"
#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
struct BlockwiseEncoding : Encoding<T> {
  BlockwiseFormat format;
};

template <typename T>
struct BlockwiseDecoding : Decoding<T> {
  BlockwiseFormat format;
};

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
