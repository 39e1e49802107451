// How a grid shares the work. Every kernel takes any number of blocks, of block_threads threads each, along x; along y
// there are as many as there are calls, and each works for its own.
//
// A warp takes tiles of 1,024 elements, 32 rows of 32: lane j has element j of each row, so that a warp's loads
// and stores are of neighbours, and a ballot over a row is a word of 32 bits.
#pragma once

#include "cuda/call.h"

#define GLUON_GC_KERNEL \
  extern "C" __global__ void __launch_bounds__(gluon_gc::cuda::block_threads, gluon_gc::cuda::blocks_together)

namespace gluon_gc {
namespace cuda {
namespace {

constexpr int warp_lanes = 32, warps = block_threads / warp_lanes;
constexpr int rows = tile / warp_lanes;
constexpr uint32 all_lanes = 0xffffffff;

__device__ inline int lane() { return threadIdx.x % warp_lanes; }
__device__ inline int warp() { return threadIdx.x / warp_lanes; }

// The call that this block works for.
template <typename Call>
__device__ inline const Call& mine(const Batch<Call>& calls) {
  return calls.call[blockIdx.y];
}

// Calls step(i) for `count` numbers, each by one warp of the grid.
template <typename Number, typename Step>
__device__ inline void share_among_warps(Number count, Step step) {
  for (Number i = Number{blockIdx.x} * warps + warp(); i < count; i += Number{gridDim.x} * warps) step(i);
}

// Calls step(number of a tile) for each tile of n elements, each by one warp of the grid.
template <typename Step>
__device__ inline void for_each_tile(Size n, Step step) {
  share_among_warps(tiles_of(n), step);
}

// Calls step(i) for each of n elements, by one thread of the grid.
template <typename Number, typename Step>
__device__ inline void for_each_element(Number n, Step step) {
  const Number threads = Number{gridDim.x} * block_threads;
  for (Number i = Number{blockIdx.x} * block_threads + threadIdx.x; i < n; i += threads) step(i);
}

// Rows of a column that are loaded before any is used, so that many loads are under way: 32 bytes a lane.
template <typename T>
constexpr int rows_ahead = 32 / sizeof(T);

// This lane's elements of tile `t` of n elements, one in each row from a row on.
class Column {
 public:
  __device__ Column(Size t, int row, Size n)
      : first_(t * tile + row * warp_lanes + lane()),
        left_(static_cast<int>(n - t * tile < tile ? n - t * tile : tile) - row * warp_lanes - lane()) {}

  // Whether there is one in a row.
  __device__ bool has(int row) const { return row * warp_lanes < left_; }

  // Its number.
  __device__ Size operator[](int row) const { return first_ + row * warp_lanes; }

 private:
  const Size first_;
  const int left_;  // elements from the first one to the end of the tile
};

// Whether this block is the last one of its call that comes here. All its threads call it; what other blocks
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
template <typename Value>
__device__ inline Value published(const Value* value) {
  return *static_cast<const volatile Value*>(value);
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
