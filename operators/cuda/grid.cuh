// How a grid shares the work. Every kernel takes any number of blocks, of block_threads threads each.
//
// A warp takes tiles of 1,024 elements, 32 rows of 32: lane j has element j of each row, so that a warp's loads
// and stores are of neighbours, and a ballot over a row is a word of 32 bits.
#pragma once

#include "cuda/call.h"

#define GLUON_GC_KERNEL extern "C" __global__ void __launch_bounds__(gluon_gc::cuda::block_threads)

namespace gluon_gc {
namespace cuda {
namespace {

constexpr int warp_lanes = 32, warps = block_threads / warp_lanes;
constexpr int rows = tile / warp_lanes;
constexpr uint32 all_lanes = 0xffffffff;

__device__ inline int lane() { return threadIdx.x % warp_lanes; }
__device__ inline int warp() { return threadIdx.x / warp_lanes; }

// Calls step(number of a tile) for each tile of n elements, each by one warp of the grid.
template <typename Step>
__device__ inline void for_each_tile(Size n, Step step) {
  for (Size t = Size{blockIdx.x} * warps + warp(); t < tiles_of(n); t += Size{gridDim.x} * warps) step(t);
}

// Calls step(i) for each of n elements, by one thread of the grid.
template <typename Step>
__device__ inline void for_each_element(Size n, Step step) {
  const Size threads = Size{gridDim.x} * block_threads;
  for (Size i = Size{blockIdx.x} * block_threads + threadIdx.x; i < n; i += threads) step(i);
}

// Whether this block is the last one of the grid that comes here. All its threads call it; what other blocks
// wrote before they came can then be read with `published`.
__device__ inline bool last_block(uint32* ticket) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;  // after which it is 0
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// What another block, or another thread of this one, wrote to global memory: not from a cache of old values.
__device__ inline double published(const double* value) { return *static_cast<const volatile double*>(value); }

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
