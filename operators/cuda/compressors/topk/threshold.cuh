// Radix select on the bits of magnitudes: finds the magnitude of a given rank, and estimates a threshold from a sample.
#pragma once

#include "cuda/compressors/topk/plan.h"
#include "cuda/grid.cuh"
#include "cuda/scan.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The memory of a search.
template <typename T>
struct SearchMemory {
  __device__ SearchMemory(void* workspace, Size n, const Search& search) {
    const SearchLayout<T> layout(n, search);
    char* const memory = static_cast<char*>(workspace);
    state = static_cast<SearchState<T>*>(workspace);
    histogram = reinterpret_cast<uint32*>(memory + layout.histogram);
    parts = reinterpret_cast<uint64*>(memory + layout.parts);
    segments = reinterpret_cast<uint64*>(memory + layout.segments);
    sample = reinterpret_cast<Bits<T>*>(memory + layout.sample);
    values = reinterpret_cast<T*>(memory + layout.values);
    indices = reinterpret_cast<uint32*>(memory + layout.indices);
  }

  SearchState<T>* state;
  uint32* histogram;
  uint64 *parts, *segments;
  Bits<T>* sample;
  T* values;
  uint32* indices;
};

// Digit `number` of magnitudes; 0 is the highest digit.
template <typename T>
struct Digit {
  __device__ explicit Digit(int number) : top(sign_shift<T> - number * digit_bits) {
    shift = top < digit_bits ? 0 : top - digit_bits;
  }

  __device__ uint32 operator()(Bits<T> magnitude) const {
    return static_cast<uint32>(magnitude >> shift) & ((1u << (top - shift)) - 1);
  }

  __device__ bool same_above(Bits<T> a, Bits<T> b) const { return a >> top == b >> top; }

  // Counts a magnitude if its higher digits are those of `limit`. Value 0 is not counted: choose takes it if no other
  // value fits. So a gradient with many zeros does not wait for atomics on one counter.
  __device__ void count(Bits<T> magnitude, Bits<T> limit, uint32* counts) const {
    const uint32 value = (*this)(magnitude);
    if (value != 0 && same_above(magnitude, limit)) atomicAdd(counts + value, 1u);
  }

  int top, shift;
};

// Adds a digit to state.limit: the digit of the magnitude of rank state.rank. `counts` says how often each value of the
// digit occurs, and is set to 0. All threads of a block must call it.
template <typename T>
__device__ inline void choose(SearchState<T>& state, const Digit<T>& digit, uint32* counts) {
  constexpr int own = digit_values / block_threads;
  const uint32 highest = digit_values - 1 - own * threadIdx.x;
  uint32 count[own], sum = 0;
#pragma unroll
  for (int i = 0; i < own; ++i) {
    count[i] = published(counts + highest - i);
    counts[highest - i] = 0;
    sum += count[i];
  }
  const uint32 rank = published(&state.rank), higher = scan(sum).before;  // its barriers protect state.rank
  const bool is_last = threadIdx.x == block_threads - 1;                  // has value 0, which is not counted
  if (rank > higher && (rank <= higher + sum || is_last)) {
    uint32 left = rank - higher, value = highest;
#pragma unroll
    for (int i = 0; i < own - 1; ++i) {
      if (value != highest - i || left <= count[i]) continue;
      left -= count[i];
      --value;
    }
    state.limit = published(&state.limit) | static_cast<Bits<T>>(value) << digit.shift;
    state.rank = left;
  }
  __syncthreads();
}

// Finds digit `number` of the magnitude of rank state.rank among `count` items, item(i). The grid calls it for one
// digit after the other, in a launch each. `histogram` is all zeros before and after.
template <typename T, typename Item>
__device__ void narrow(SearchState<T>& state, int number, Size count, uint32* histogram, uint32* ticket, Item item) {
  __shared__ uint32 counts[digit_values];
  for (int i = threadIdx.x; i < digit_values; i += block_threads) counts[i] = 0;
  __syncthreads();
  const Digit<T> digit(number);
  const Bits<T> limit = state.limit;
  for_each_tile(count, [&](Size t) {
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, count);
      T x[rows_ahead<T>];
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) x[r] = column.has(r) ? item(column[r]) : T{0};
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) digit.count(magnitude_bits(x[r]), limit, counts);
    }
  });
  __syncthreads();
  for (int i = threadIdx.x; i < digit_values; i += block_threads) {
    if (counts[i] != 0) atomicAdd(histogram + i, counts[i]);
  }
  if (last_block(ticket)) choose(state, digit, histogram);
}

// The index of element `i` of a sample of `size` elements.
__device__ inline Size sample_index(uint32 i, uint32 size, Size n) {
  const uint32 distance = static_cast<uint32>(n) / (size / sample_neighbours);
  return sampled_index(i / sample_neighbours, distance, sample_neighbours) + i % sample_neighbours;
}

// Begins a search. If it uses a sample, estimates a threshold that slightly more than k elements reach. preview(i)
// returns p of element i. Of every search.fold elements of the sample, only the largest counts.
template <typename T, typename Preview>
__device__ void begin_search(const Search& search, const SearchMemory<T>& memory, Size n, uint32* ticket,
                             Preview preview) {
  constexpr int digits = 2;  // of the threshold
  for_each_element(search.rank == 0 ? 0 : topk_sample, [&](Size i) {
    Bits<T> largest = 0;
    for (uint32 fold = 0; fold < search.fold; ++fold) {
      const uint32 number = fold * topk_sample + static_cast<uint32>(i);
      const Bits<T> magnitude = magnitude_bits(preview(sample_index(number, search.fold * topk_sample, n)));
      if (magnitude > largest) largest = magnitude;
    }
    memory.sample[i] = largest;
  });
  if (!last_block(ticket)) return;
  SearchState<T>& state = *memory.state;
  for (int i = threadIdx.x; i < digit_values; i += block_threads) memory.histogram[i] = 0;
  if (threadIdx.x == 0) state = {0, 0, search.rank, 0, 0, 1, {}};
  __syncthreads();
  for (int number = 0; number < digits && search.rank != 0; ++number) {
    const Digit<T> digit(number);
    const Bits<T> limit = published(&state.limit);
    for (uint32 i = threadIdx.x; i < topk_sample; i += block_threads) {
      digit.count(published(memory.sample + i), limit, memory.histogram);
    }
    __syncthreads();
    choose(state, digit, memory.histogram);
  }
  if (threadIdx.x != 0) return;
  const Bits<T> threshold = published(&state.limit);
  state = {threshold == 0 ? 1 : threshold, 0, search.k, 0, 0, 1, {}};  // zeros are never listed
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
