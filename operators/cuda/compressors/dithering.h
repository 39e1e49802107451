// What dithering's kernels are given.
#pragma once

#include "core/compressors/dithering_format.h"
#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

// Elements of a warp, of whose lanes each draws for a segment, and of how many warps n elements are.
constexpr Size chunk_of(uint32 segment) { return Size{32} * segment; }
constexpr Size chunks_of(Size n, uint32 segment) { return n / chunk_of(segment) + (n % chunk_of(segment) != 0); }

template <typename T>
struct DitheringEncoding : Encoding<T> {
  DitheringConfig config;
  uint32 segment;
  RandomStream* streams;  // at the first element of each chunk
  double* sums;           // of the tiles and above them, or the largest of each tile
};

}  // namespace cuda
}  // namespace gluon_gc
