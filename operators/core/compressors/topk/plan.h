// The parameters and the memory of topk's search for the k largest of n elements. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/compressors/sparse/format.h"

namespace gluon_gc {
namespace {

// TopkElement: an element as one integer, where the larger integer is preferred. From the highest bit:
//   [bits of the magnitude] [inverted index: 32 bits] [sign: 1 bit]
template <std::size_t size>
struct ElementOfSize {
  using type = std::uint64_t;
};
template <>
struct ElementOfSize<8> {
  using type = unsigned __int128;
};
template <typename T>
using TopkElement = typename ElementOfSize<sizeof(T)>::type;

constexpr std::size_t topk_most_fold = 4;
constexpr std::size_t topk_segment = 16384;  // elements whose candidates are contiguous in memory

// The threshold for candidates is the element with this rank in the sample. rank 0: all elements are candidates.
struct TopkPlan {
  std::size_t rank;
  std::size_t fold;      // each element of the sample is the largest of `fold` elements
  std::size_t capacity;  // the most candidates
};

// About k / n * sample of the k largest elements are in the sample. The rank is 3.5 standard deviations higher, so the
// threshold is hardly ever too high. The capacity is 6 standard deviations above the expected number of candidates.
//
// A larger sample leaves fewer candidates, but each sixteen elements of it are cache misses. With up to a million
// elements, the misses cost more.
inline TopkPlan topk_plan(std::size_t n, std::size_t k) {
  const std::size_t fold = n > 256 * std::size_t{topk_sample} && k <= n / 16 ? topk_most_fold : 1;
  const std::size_t sample = fold * topk_sample;
  const double expected = n == 0 ? 0 : static_cast<double>(k) / static_cast<double>(n) * sample;
  const auto rank = static_cast<std::size_t>(expected + 3.5 * __builtin_sqrt(expected) + 3);
  if (n <= 4 * sample || rank > topk_sample / 2) return {0, 1, n};
  const double room = static_cast<double>(rank) + 6 * __builtin_sqrt(static_cast<double>(rank)) + 16;
  return {rank, fold, static_cast<std::size_t>(room * static_cast<double>(n / sample + 1))};
}

struct TopkSegment {
  std::size_t begin, count;
};

// The memory of the search; uninitialised.
template <typename T>
struct TopkWorkspace {
  TopkWorkspace(void* memory, const TopkPlan& plan)
      : candidates(static_cast<TopkElement<T>*>(memory)),
        scratch(candidates + plan.capacity),
        segments(reinterpret_cast<TopkSegment*>(scratch + plan.capacity)) {}

  static std::size_t bytes(const TopkPlan& plan, std::size_t n) {
    return 2 * plan.capacity * sizeof(TopkElement<T>) + (n / topk_segment + 1) * sizeof(TopkSegment);
  }

  TopkElement<T>* candidates;  // plan.capacity elements
  TopkElement<T>* scratch;     // plan.capacity elements
  TopkSegment* segments;       // n / topk_segment + 1: the place of each segment's candidates
};

}  // namespace
}  // namespace gluon_gc
