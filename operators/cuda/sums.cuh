// Sums in the tree of core/sum_tree.h. They have the same bits as on the CPU, for any number of blocks.
#pragma once

#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Returns the sum of the warp's chains in lane 0: chain j is added to chain j + 16, then + 8, + 4, + 2, + 1.
__device__ inline double butterfly(double chain) {
  for (int half = warp_lanes / 2; half != 0; half /= 2) chain += __shfl_xor_sync(all_lanes, chain, half);
  return chain;
}

// Returns the sum of `count` tile sums, which other blocks wrote. All threads of the last block must call it. The
// higher levels of the tree are written behind the tile sums; tree_size counts all levels.
__device__ inline double sum_tiles(double* sums, Size count) {
  while (count > 1) {
    double* const above = sums + count;
    for (Size t = warp(); t < tiles_of(count); t += warps) {
      const Column column(t, 0, count);
      double chain = 0;
#pragma unroll 8
      for (int row = 0; row < rows; ++row) chain += column.has(row) ? published(sums + column[row]) : 0;
      chain = butterfly(chain);
      if (lane() == 0) above[t] = chain;
    }
    __syncthreads();
    sums = above;
    count = tiles_of(count);
  }
  return count == 0 ? 0 : published(sums);
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
