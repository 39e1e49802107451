// The sweep that lists candidates, among which those to send are looked for.
#pragma once

#include "cuda/compressors/topk_threshold.cuh"
#include "cuda/correction.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// A segment: the place of its first candidate in the list, and their number.
__device__ inline uint64 segment_of(uint32 place, uint32 count) { return uint64{place} << 32 | count; }

// Momentum and feedback of all elements: correct(column, p) gives p of some rows, which is stored where `kept` is not
// null. Lists those that reach the threshold; p_at(i) is one once more. If there is no room for them all, just their
// number is known.
template <typename T, typename Correct, typename P>
__device__ void collect(const Search& search, const SearchMemory<T>& memory, Size n, T* kept, Correct correct, P p_at) {
  const Bits<T> threshold = memory.state->threshold;
  bool finite = true;
  for_each_tile(n, [&](Size t) {
    uint32 candidates = 0;  // in the row that is this lane's number, one bit each
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, n);
      T p[rows_ahead<T>];
      correct(column, p);
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) {
        if (kept != nullptr && column.has(r)) kept[column[r]] = p[r];
        const Bits<T> magnitude = column.has(r) ? magnitude_bits(p[r]) : 0;
        finite = finite && magnitude < infinity_bits<T>;
        const uint32 in_row = __ballot_sync(all_lanes, magnitude >= threshold);  // which is not 0
        if (lane() == row + r) candidates = in_row;
      }
    }
    if (search.rank == 0) return;
    const Scan<uint32> count = scan_warp(static_cast<uint32>(__popc(candidates)));
    uint32 place = 0;
    if (lane() == 0) {
      if (count.all != 0) place = atomicAdd(&memory.state->found, count.all);
      memory.segments[t] = segment_of(place, count.all);
    }
    place = __shfl_sync(all_lanes, place, 0);
    if (place + count.all > search.capacity) return;
    __syncwarp();  // after which p of other lanes can be read
    for (place += count.before; candidates != 0; candidates &= candidates - 1) {
      const Size i = t * tile + lane() * warp_lanes + __ffs(candidates) - 1;
      memory.values[place] = p_at(i);
      memory.indices[place] = static_cast<uint32>(i);
      ++place;
    }
  });
  if (__ballot_sync(all_lanes, !finite) != 0 && lane() == 0) memory.state->finite = 0;
}

// Whether all elements that reach a threshold are in the list.
template <typename T>
__device__ inline bool are_listed(const Search& search, const SearchState<T>& state, Bits<T> threshold) {
  return search.rank != 0 && state.found <= search.capacity && threshold >= state.threshold;
}

// The next digit of the magnitude of number k.
template <typename T, typename P>
__device__ void narrow_to_largest(const Search& search, const SearchMemory<T>& memory, uint32 k, int number, Size n,
                                  uint32* ticket, P p_at) {
  SearchState<T>& state = *memory.state;
  const bool listed = are_listed(search, state, state.threshold) && state.found >= k;
  narrow(state, number, listed ? state.found : n, memory.histogram, ticket,
         [&](Size i) { return listed ? memory.values[i] : p_at(i); });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
