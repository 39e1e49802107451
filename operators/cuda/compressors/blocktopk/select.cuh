// The choice of blocktopk on the GPU: a thread block finds the largest elements of a block exactly, by radix select.
#pragma once

#include "core/compressors/blocktopk/format.h"
#include "cuda/compressors/topk/threshold.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Finds the magnitude of rank `kept` among the elements p: state.limit. state.rank elements with this magnitude are
// sent. `counts` is shared memory for the search. All threads of the block must call it.
template <typename T>
__device__ inline void find_limit(SearchState<T>& state, uint32* counts, const T* p, uint32 size, uint32 kept) {
  for (int i = threadIdx.x; i < digit_values; i += block_threads) counts[i] = 0;
  if (threadIdx.x == 0) state = {0, 0, kept, 0, 0, 1};
  __syncthreads();
  for (int number = 0; number < digit_count<T>; ++number) {
    const Digit<T> digit(number);
    const Bits<T> limit = state.limit;
    for (uint32 i = threadIdx.x; i < size; i += block_threads) digit.count(magnitude_bits(p[i]), limit, counts);
    __syncthreads();
    choose(state, digit, counts);
  }
}

// The elements of a warp's row that are above the limit, and those at the limit: one bit a lane. Elements past the end
// count as zeros. They are never sent, because they come last.
template <typename T>
struct Votes {
  __device__ Votes(const T* p, uint32 i, uint32 size, Bits<T> limit) {
    const Bits<T> magnitude = i < size ? magnitude_bits(p[i]) : 0;
    above = __ballot_sync(all_lanes, magnitude > limit);
    at_limit = __ballot_sync(all_lanes, magnitude == limit);
  }

  uint32 above, at_limit;
};

// Writes the indices of all elements above the limit and of the first `equal` elements at the limit, ascending. Each
// warp has a part of the block of elements. All threads of the block must call it.
template <typename T>
__device__ inline void list_largest(const T* p, uint32 size, uint32 block, Bits<T> limit, uint32 equal,
                                    uint16* indices) {
  __shared__ uint32 above_of[warps], at_limit_of[warps];
  const uint32 part = block / warps, first = warp() * part + lane(), lower_lanes = (1u << lane()) - 1;
  uint32 above = 0, at_limit = 0;
  for (uint32 row = 0; row < part; row += warp_lanes) {
    const Votes<T> votes(p, first + row, size, limit);
    above += __popc(votes.above);
    at_limit += __popc(votes.at_limit);
  }
  if (lane() == 0) {
    above_of[warp()] = above;
    at_limit_of[warp()] = at_limit;
  }
  __syncthreads();
  above = at_limit = 0;  // from here on: before the row
  for (int i = 0; i < warp(); ++i) {
    above += above_of[i];
    at_limit += at_limit_of[i];
  }
  for (uint32 row = 0; row < part; row += warp_lanes) {
    const Votes<T> votes(p, first + row, size, limit);
    const uint32 higher = above + __popc(votes.above & lower_lanes);
    const uint32 ties = at_limit + __popc(votes.at_limit & lower_lanes);
    const bool is_higher = votes.above >> lane() & 1, is_tie = votes.at_limit >> lane() & 1;
    if (is_higher || (is_tie && ties < equal)) {
      indices[higher + (ties < equal ? ties : equal)] = static_cast<uint16>(first + row);
    }
    above += __popc(votes.above);
    at_limit += __popc(votes.at_limit);
  }
  __syncthreads();
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
