// Magnitudes as integers, and what to compare them with so that about k are left. For kernel sources only
// (see isa.h).
#pragma once

#include "core/compressors/sparse_format.h"
#include "core/compressors/topk_plan.h"
#include "core/correction.h"
#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

using ElementBlocks = Blocks<16384>;

// The magnitude that at least `least` elements reach, given how many reach one: its bits from the highest on,
// just so many that at most `most` reach it, or all of them.
template <typename T, typename Count>
Bits<T> find_threshold(std::size_t least, std::size_t most, Count count_at_least) {
  Bits<T> threshold = 0;
  std::size_t reached = most + 1;
  for (int bit = sign_shift<T> - 1; bit >= 0 && reached > most; --bit) {
    const Bits<T> higher = threshold | Bits<T>{1} << bit;
    const std::size_t count = count_at_least(higher);
    if (count < least) continue;
    threshold = higher;
    reached = count;
  }
  return magnitude_bits(from_bits(threshold));  // the least NaN, if it is one
}

// A threshold from a sample of p. Of every plan.fold elements only the largest is looked at, as only few of
// the sample are to reach it. They are sixteen neighbours here and there (sampled_index).
template <typename T, typename Correct>
Bits<T> sampled_threshold(const Correct& correct, std::size_t n, const TopkPlan& plan, int threads) {
  constexpr std::size_t groups = topk_sample / lanes;
  const std::size_t all_groups = groups * plan.fold, stride = n / all_groups;
  Vec<T> sample[groups * topk_most_fold];
  ElementBlocks(n).run_parts(threads, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t group = (begin + stride - 1) / stride; group < all_groups && group * stride < end; ++group) {
      const auto place = static_cast<std::uint32_t>(group);
      sample[group] = correct.preview(sampled_index(place, stride, lanes), All{});
    }
  });
  for (std::size_t group = groups; group < all_groups; ++group) {
    sample[group % groups] = larger_magnitude(sample[group % groups], sample[group]);
  }
  return find_threshold<T>(plan.rank, plan.rank + plan.rank / 8, [&](Bits<T> threshold) {
    std::size_t count = 0;
    for (std::size_t group = 0; group < groups; ++group) {
      count += __builtin_popcount(magnitude_at_least(sample[group], threshold));
    }
    return count;
  });
}

// How many of p are at least the threshold, which is not 0.
template <typename T>
std::size_t count_at_least(const Corrected<T>& p, Bits<T> threshold, std::size_t n, int threads) {
  if (threshold > magnitude_bits(from_bits(threshold))) return 0;  // the NaNs are all the least one
  const ElementBlocks blocks(n);
  std::size_t counts[max_blocks];
  blocks.run(threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
    std::size_t count = 0;
    sweep<lanes>(begin, end, [=, &count](std::size_t i, auto present) {
      count += __builtin_popcount(magnitude_at_least(p(i, present), threshold));
    });
    counts[block] = count;
  });
  std::size_t total = 0;
  for (std::size_t block = 0; block < blocks.count; ++block) total += counts[block];
  return total;
}

}  // namespace
}  // namespace gluon_gc
