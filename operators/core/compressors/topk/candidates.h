// The candidates of topk: elements above a threshold, encoded as integers that sort by preference (TopkElement). For
// kernel sources only (see isa.h).
#pragma once

#include "core/correction.h"
#include "core/parallel.h"
#include "core/compressors/topk/plan.h"
#include "core/compressors/topk/threshold.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t group_elements = 64;

template <typename T>
TopkElement<T> element(T x, std::size_t index) {
  const Bits<T> magnitude = magnitude_bits(x);
  const bool minus = bits_of(x) >> sign_shift<T> != 0 && x == x;
  const auto inverted = ~static_cast<std::uint32_t>(index);
  return static_cast<TopkElement<T>>(magnitude) << 33 | static_cast<TopkElement<T>>(inverted) << 1 | minus;
}

template <typename T>
std::uint32_t index_of(TopkElement<T> element) {
  return ~static_cast<std::uint32_t>(element >> 1);
}

template <typename T>
Bits<T> value_bits(TopkElement<T> element) {
  const auto sign = static_cast<Bits<T>>(element & 1) << sign_shift<T>;
  return static_cast<Bits<T>>(element >> 33) | sign;
}

inline int highest_bit(std::uint64_t x) { return 63 - __builtin_clzll(x); }
inline int highest_bit(unsigned __int128 x) {
  const auto high = static_cast<std::uint64_t>(x >> 64);
  return high != 0 ? 64 + highest_bit(high) : highest_bit(static_cast<std::uint64_t>(x));
}

// Returns the value with this rank, from 1, in descending order. Overwrites the values. A radix selection: each round
// takes the eight highest bits in which the remaining values differ, and keeps the values with the right digit.
template <typename U>
U select(U* values, std::size_t count, std::size_t rank) {
  for (;;) {
    U differing = 0;
    for (std::size_t i = 0; i < count; ++i) differing |= values[i] ^ values[0];
    if (differing == 0) return values[0];
    const int top = highest_bit(differing);
    const int shift = top < 7 ? 0 : top - 7;
    std::size_t counts[256] = {};
    for (std::size_t i = 0; i < count; ++i) ++counts[static_cast<std::uint8_t>(values[i] >> shift)];
    std::uint8_t digit = 255;
    for (; rank > counts[digit]; --digit) rank -= counts[digit];
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const U value = values[i];
      values[kept] = value;
      kept += static_cast<std::uint8_t>(value >> shift) == digit;
    }
    count = kept;
  }
}

// The candidates among the 64 elements from `begin`: one bit for each element.
struct Group {
  std::uint64_t begin, bits;
};

// The number of elements that reach a threshold. They are in the workspace if `count` is at most plan.capacity.
template <typename T>
struct Found {
  Bits<T> threshold;
  std::size_t count;
};

// One element of p after the sweep has reached it. A residual that has gone past the caches is not read: what it was
// computed from is still in the caches.
template <typename T, typename Correct>
T corrected_element(const Correct& correct, const Corrected<T>& p, const StateWriter<T>& residual, std::size_t i,
                    std::size_t n) {
  if constexpr (Correct::has_residual) {
    const std::size_t begin = i - i % lanes;
    if (residual.past_caches && begin + lanes <= n) {
      alignas(64) T values[lanes];
      store(correct.preview(begin, All{}), values, All{});
      return values[i - begin];
    }
  }
  return p[i];
}

// The sweep: writes momentum, stores p in the residual, and collects the elements that reach the threshold. Returns
// their number, even if it exceeds plan.capacity; then some candidates are missing.
template <typename T, typename Correct>
std::size_t collect(const Correct& correct, const Corrected<T>& p, Bits<T> threshold, std::size_t n,
                    const StateWriter<T>& residual, const TopkPlan& plan, const TopkWorkspace<T>& workspace,
                    int threads) {
  alignas(128) std::size_t total = 0;
  ElementBlocks(n).run(threads, [=, &total](std::size_t, std::size_t block_begin, std::size_t block_end) {
    for (std::size_t begin = block_begin; begin < block_end; begin += topk_segment) {
      const std::size_t end = block_end - begin < topk_segment ? block_end : begin + topk_segment;
      Group groups[topk_segment / group_elements];
      std::size_t group_count = 0, count = 0;
      sweep<group_elements>(begin, end, [=, &groups, &group_count, &count](std::size_t i, auto present) {
        std::uint64_t bits = 0;
        for (std::size_t part = 0; part < group_elements / lanes; ++part) {
          const auto here = present.part(part);
          const Vec<T> x = correct(i + part * lanes, here);
          if constexpr (Correct::has_residual) residual(x, i + part * lanes, here);
          bits |= std::uint64_t{magnitude_at_least(x, threshold) & all_bits(here)} << part * lanes;
        }
        groups[group_count] = {i, bits};
        group_count += bits != 0;
        count += __builtin_popcountll(bits);
      });
      // Atomic only with several threads, because an atomic operation waits for all stores before it.
      const std::size_t place = threads > 1 ? __atomic_fetch_add(&total, count, __ATOMIC_RELAXED) : total;
      if (threads <= 1) total += count;
      workspace.segments[begin / topk_segment] = {place, count};
      if (place + count > plan.capacity) continue;
      TopkElement<T>* to = workspace.candidates + place;
      for (std::size_t g = 0; g < group_count; ++g) {
        for (std::uint64_t bits = groups[g].bits; bits != 0; bits &= bits - 1) {
          const std::size_t i = groups[g].begin + __builtin_ctzll(bits);
          *to++ = element(corrected_element(correct, p, residual, i, n), i);
        }
      }
    }
  });
  return total;
}

// Collects the candidates, with a threshold from a sample. Writes momentum, and stores p in the residual.
template <typename T, typename Correct>
Found<T> find_candidates(const Correct& correct, const Corrected<T>& p, std::size_t n,
                         const StateWriter<T>& residual, const TopkPlan& plan, const TopkWorkspace<T>& workspace,
                         int threads) {
  Bits<T> threshold = 0;
  if (plan.rank != 0) threshold = sampled_threshold<T>(correct, n, plan, threads);
  if (plan.rank != 0 && threshold == 0) threshold = 1;  // the sample is mostly zeros, which are no candidates
  return {threshold, collect(correct, p, threshold, n, residual, plan, workspace, threads)};
}

}  // namespace
}  // namespace gluon_gc
