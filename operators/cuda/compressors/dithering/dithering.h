// The arguments of dithering's kernels.
#pragma once

#include "core/compressors/dithering/format.h"
#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

// A warp takes a chunk: one segment for each of its 32 lanes. chunk_of is the number of elements of a chunk, chunks_of
// the number of chunks of n elements.
constexpr Size chunk_of(uint32 segment) { return Size{32} * segment; }
constexpr Size chunks_of(Size n, uint32 segment) { return n / chunk_of(segment) + (n % chunk_of(segment) != 0); }

template <typename T>
struct DitheringEncoding : Encoding<T> {
  DitheringConfig config;
  uint32 segment;
  RandomStream* streams;  // at the first draw of each chunk
  double* sums;           // l2: the tree of sums; max: the largest magnitude of each tile
};

}  // namespace cuda
}  // namespace gluon_gc
