// The threshold of topk that slightly more than k elements reach. Magnitudes are compared by their bits, as integers.
// For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/sparse/format.h"
#include "core/compressors/topk/plan.h"
#include "core/correction.h"
#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

using ElementBlocks = Blocks<16384>;

// Finds a magnitude that at least `least` elements reach, and at most `most` if possible. count_at_least(x) returns how
// many elements reach x. Sets the bits of the magnitude, which is below 2^bits, from the highest on, until at most
// `most` elements reach it.
template <typename T, typename Count>
Bits<T> find_bits(std::size_t least, std::size_t most, Count count_at_least, int bits = sign_shift<T>) {
  Bits<T> threshold = 0;
  std::size_t reached = most + 1;
  for (int bit = bits - 1; bit >= 0 && reached > most; --bit) {
    const Bits<T> higher = threshold | Bits<T>{1} << bit;
    const std::size_t count = count_at_least(higher);
    if (count < least) continue;
    threshold = higher;
    reached = count;
  }
  return threshold;
}

// The same, where all NaNs count as nan_bits.
template <typename T, typename Count>
Bits<T> find_threshold(std::size_t least, std::size_t most, Count count_at_least) {
  return magnitude_bits(from_bits(find_bits<T>(least, most, count_at_least)));
}

// A threshold from a sample of p: groups of sixteen neighbours at the places of sampled_index. Only the largest of
// every plan.fold elements counts, because few elements of the sample are to reach the threshold.
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

// The number of elements of p that reach the threshold, which must not be 0.
template <typename T>
std::size_t count_at_least(const Corrected<T>& p, Bits<T> threshold, std::size_t n, int threads) {
  if (threshold > magnitude_bits(from_bits(threshold))) return 0;  // above nan_bits, which stands for all NaNs
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
