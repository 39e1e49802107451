// The largest value of a warp.
#pragma once

#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Returns the largest value of the warp's lanes in all lanes.
template <typename Value>
__device__ inline Value largest_of_warp(Value largest) {
  for (int half = warp_lanes / 2; half != 0; half /= 2) {
    const Value other = __shfl_xor_sync(all_lanes, largest, half);
    if (other > largest) largest = other;
  }
  return largest;
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
