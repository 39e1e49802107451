// The scales of a block's values on the GPU. One warp computes them, because the sums have 32 chains (sum_tree.h).
#pragma once

#include "core/compressors/blocktopk/format.h"
#include "cuda/largest.cuh"
#include "cuda/scan.cuh"
#include "cuda/sums.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The sum of magnitude(j) over j below `count`, in float64. All lanes get it.
template <typename Magnitude>
__device__ inline double sum_of_warp(uint32 count, Magnitude magnitude) {
  double chain = 0;
  for (uint32 j = lane(); j < count; j += warp_lanes) chain += static_cast<double>(magnitude(j));
  return butterfly(chain);
}

// The levels of 8 or 4 bits.
template <typename T, typename Value>
__device__ inline BlocktopkLevels<T> even_levels(uint32 count, int bits, Value value) {
  Bits<T> largest = 0;
  for (uint32 j = lane(); j < count; j += warp_lanes) {
    const Bits<T> magnitude = bits_of(absolute(value(j)));
    if (magnitude > largest) largest = magnitude;
  }
  return {bits, from_bits(largest_of_warp(largest)), 0};
}

// The levels of 2 bits, and the mean magnitude that separates them.
template <typename T, typename Value>
__device__ inline BlocktopkLevels<T> two_levels(uint32 count, Value value, T& split) {
  const T mean = blocktopk_mean<T>(sum_of_warp(count, [&](uint32 j) { return absolute(value(j)); }), count);
  uint32 own = 0;
  for (uint32 j = lane(); j < count; j += warp_lanes) own += absolute(value(j)) >= mean;
  const uint32 high = scan_warp(own).all;
  const double low_sum = sum_of_warp(count, [&](uint32 j) {
    const T x = absolute(value(j));
    return x >= mean ? T{0} : x;
  });
  const double high_sum = sum_of_warp(count, [&](uint32 j) {
    const T x = absolute(value(j));
    return x >= mean ? x : T{0};
  });
  split = mean;
  return {2, blocktopk_mean<T>(low_sum, count - high), blocktopk_mean<T>(high_sum, high)};
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
