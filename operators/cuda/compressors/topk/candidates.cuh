// The sweep that applies momentum and feedback, and lists the candidates for sending.
#pragma once

#include "cuda/compressors/topk/threshold.cuh"
#include "cuda/correction.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The candidates of a tile: where the first one is in the list, and their number.
__device__ inline uint64 segment_of(uint32 place, uint32 count) { return uint64{place} << 32 | count; }

// Calls correct(column, p), which applies momentum and feedback, for all elements, and stores p in `kept` unless that
// is null. Lists the elements that reach the threshold; p_at(i) returns p of element i again. If the list has no room
// for all of them, only their number is valid.
template <typename T, typename Correct, typename P>
__device__ void collect(const Search& search, const SearchMemory<T>& memory, Size n, T* kept, Correct correct, P p_at) {
  const Bits<T> threshold = memory.state->threshold;
  bool finite = true;
  for_each_tile(n, [&](Size t) {
    uint32 candidates = 0;  // one bit for each candidate in row lane()
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
        const uint32 in_row = __ballot_sync(all_lanes, magnitude >= threshold);  // threshold > 0
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
    __syncwarp();  // makes the p that other lanes stored visible
    for (place += count.before; candidates != 0; candidates &= candidates - 1) {
      const Size i = t * tile + lane() * warp_lanes + __ffs(candidates) - 1;
      memory.values[place] = p_at(i);
      memory.indices[place] = static_cast<uint32>(i);
      ++place;
    }
  });
  if (__ballot_sync(all_lanes, !finite) != 0 && lane() == 0) memory.state->finite = 0;
}

// Whether the list has all elements that reach a threshold.
template <typename T>
__device__ inline bool are_listed(const Search& search, const SearchState<T>& state, Bits<T> threshold) {
  return search.rank != 0 && state.found <= search.capacity && threshold >= state.threshold;
}

// Finds a digit of the k-th largest magnitude, among the candidates if they are enough, else among all elements.
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
