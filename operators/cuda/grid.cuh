// How a grid shares the work. Along y, a grid has one row of blocks for each call. Along x, a row has any number of
// blocks, of block_threads threads each.
//
// A warp takes tiles of 1,024 elements: 32 rows of 32. Lane j has element j of each row. So the loads and stores of a
// warp are coalesced, and a ballot over a row is a word of 32 bits.
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

// The call that this block works on.
template <typename Call>
__device__ inline const Call& mine(const Batch<Call>& calls) {
  return calls.call[blockIdx.y];
}

// Calls step(i) for each i below `count`, on one warp of the grid.
template <typename Step>
__device__ inline void share_among_warps(Size count, Step step) {
  for (Size i = Size{blockIdx.x} * warps + warp(); i < count; i += Size{gridDim.x} * warps) step(i);
}

// Calls step(t) for each tile t of n elements, on one warp of the grid.
template <typename Step>
__device__ inline void for_each_tile(Size n, Step step) {
  share_among_warps(tiles_of(n), step);
}

// Calls step(i) for each i below n, on one thread of the grid.
template <typename Step>
__device__ inline void for_each_element(Size n, Step step) {
  const Size threads = Size{gridDim.x} * block_threads;
  for (Size i = Size{blockIdx.x} * block_threads + threadIdx.x; i < n; i += threads) step(i);
}

// Rows that a lane loads before it uses any, so that many loads are in flight: 32 bytes a lane.
template <typename T>
constexpr int rows_ahead = 32 / sizeof(T);

// The elements of this lane in tile `t` of n elements: one in each row. Rows are counted from `row` on.
class Column {
 public:
  __device__ Column(Size t, int row, Size n)
      : first_(t * tile + row * warp_lanes + lane()),
        left_(static_cast<int>(n - t * tile < tile ? n - t * tile : tile) - row * warp_lanes - lane()) {}

  // Rows of the elements from `first` to `end`, at most 2^31.
  __device__ static Column between(Size first, Size end) {
    return {first + lane(), first < end ? static_cast<int>(end - first) - lane() : 0};
  }

  // Whether this lane has an element in a row.
  __device__ bool has(int row) const { return row * warp_lanes < left_; }

  // The index of that element.
  __device__ Size operator[](int row) const { return first_ + row * warp_lanes; }

 private:
  __device__ Column(Size first, int left) : first_(first), left_(left) {}

  const Size first_;
  const int left_;  // elements from the first one to the end of the tile
};

// Whether this block is the last block of its call to come here. All threads of the block must call it. The last block
// can read with `published` what the other blocks wrote before they came.
__device__ inline bool last_block(uint32* ticket) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;  // resets it to 0
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// Reads a value in global memory that another block or thread wrote, not an old value from a cache.
template <typename Value>
__device__ inline Value published(const Value* value) {
  return *static_cast<const volatile Value*>(value);
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
