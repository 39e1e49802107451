// Prefix sums of integers over the threads of a warp or a block.
#pragma once

#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The sum over the threads before this one, and over all threads.
template <typename Value>
struct Scan {
  Value before, all;
};

// Sums a value over the lanes of the warp.
template <typename Value>
__device__ inline Scan<Value> scan_warp(Value value) {
  Value sum = value;
  for (int step = 1; step < warp_lanes; step *= 2) {
    const Value lower = __shfl_up_sync(all_lanes, sum, step);
    if (lane() >= step) sum += lower;
  }
  return {sum - value, __shfl_sync(all_lanes, sum, warp_lanes - 1)};
}

// Sums a value over the threads of the block, which must all call it.
template <typename Value>
__device__ inline Scan<Value> scan(Value value) {
  __shared__ Value totals[warps];
  const Scan<Value> in_warp = scan_warp(value);
  __syncthreads();  // all threads have read the totals of an earlier scan
  if (lane() == 0) totals[warp()] = in_warp.all;
  __syncthreads();
  Scan<Value> sums = {in_warp.before, 0};
  for (int i = 0; i < warps; ++i) {
    if (i < warp()) sums.before += totals[i];
    sums.all += totals[i];
  }
  return sums;
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
