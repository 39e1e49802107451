// What dithering's kernels are given.
#pragma once

#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

// Alike for all calls.
struct DitheringConfig {
  uint32 levels;
  int planes;  // of a payload: signs, and bits of the symbols
  bool natural, l2;
};

// Elements of a warp, of whose lanes each draws for a segment, and of how many warps n elements are: n is below 2^30.
constexpr uint32 chunk_of(uint32 segment) { return 32 * segment; }
constexpr uint32 chunks_of(Size n, uint32 segment) {
  return static_cast<uint32>(n / chunk_of(segment) + (n % chunk_of(segment) != 0));
}

template <typename T>
struct DitheringEncoding : Encoding<T> {
  uint32 segment;
  RandomStream* streams;  // at the first element of each chunk
  double* sums;           // of the tiles and above them, or the largest of each tile
};

}  // namespace cuda
}  // namespace gluon_gc
