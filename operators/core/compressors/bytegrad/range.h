// The first sweep of bytegrad: momentum and feedback, and the range of p. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/bytegrad/format.h"
#include "core/correction.h"
#include "core/parallel.h"

namespace gluon_gc {
namespace {

// Replaces the lanes that are not in memory by the first lane, which does not change the range.
template <typename T>
inline Vec<T> repeat_first(const Vec<T>& v, All) {
  return v;
}
template <typename T>
inline Vec<T> repeat_first(const Vec<T>& v, First present) {
  T lane[lanes];
  store(v, lane, All{});
  return choose(all_bits(present), v, broadcast(lane[0]));
}

// The least and the largest element in each lane. `zero` is 0, or NaN if an element is NaN or infinite.
template <typename T>
struct Extremes {
  static Extremes none() { return {broadcast(infinity<T>()), broadcast(-infinity<T>()), broadcast(T{0})}; }

  void add(const Vec<T>& p) {
    least = lesser(p, least);
    largest = greater(p, largest);
    zero = zero + (p - p);
  }

  void add(const Extremes& other) {
    least = lesser(other.least, least);
    largest = greater(other.largest, largest);
    zero = zero + other.zero;
  }

  Range<T> range() const {
    T low[lanes], high[lanes], zeros[lanes];
    store(least, low, All{});
    store(largest, high, All{});
    store(zero, zeros, All{});
    Range<T> range = {low[0], high[0]};
    for (std::size_t i = 0; i < lanes; ++i) {
      if (zeros[i] != 0) return {not_a_number<T>(), not_a_number<T>()};
      if (low[i] < range.low) range.low = low[i];
      if (high[i] > range.high) range.high = high[i];
    }
    return {range.low + T{0}, range.high + T{0}};  // turns -0.0 into 0.0
  }

  Vec<T> least, largest, zero;
};

// Writes momentum, stores p in the residual if there is feedback, and returns the range of p.
template <typename T, typename Correct>
Range<T> corrected_range(const Correct& correct, std::size_t n, T* residual, int threads) {
  if (n == 0) return {0, 0};
  const Blocks<16384> blocks(n);
  Extremes<T> extremes[max_blocks];
  blocks.run_back(threads, [=, &extremes](std::size_t block, std::size_t begin, std::size_t end) {
    Extremes<T> chains[] = {Extremes<T>::none(), Extremes<T>::none()};  // steps of one chain wait for each other
    const auto step = [=, &chains](std::size_t chain, std::size_t i, auto present) {
      const Vec<T> p = correct(i, present);
      if constexpr (Correct::has_residual) store(p, residual + i, present);
      chains[chain].add(repeat_first(p, present));
    };
    std::size_t i = begin;
    for (; end - i >= 4 * lanes; i += 4 * lanes) {  // unrolled: a step is short
      for (std::size_t part = 0; part < 4; ++part) step(part % 2, i + part * lanes, All{});
    }
    sweep<lanes>(i, end, [=](std::size_t i, auto present) { step(0, i, present); });
    chains[0].add(chains[1]);
    extremes[block] = chains[0];
  });
  for (std::size_t block = 1; block < blocks.count; ++block) extremes[0].add(extremes[block]);
  return extremes[0].range();
}

}  // namespace
}  // namespace gluon_gc
