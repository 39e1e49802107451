// How the k largest of n are looked for, and the memory that this takes. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/compressors/sparse_format.h"

namespace gluon_gc {
namespace {

// An element as one number: from the top its magnitude's bits, its index inverted, its sign. The larger
// number is the element to prefer.
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
constexpr std::size_t topk_segment = 16384;  // elements whose candidates lie side by side

// How to find the k among n: candidates are the elements at least as large as number `rank` of a sample,
// or all if rank is 0.
struct TopkPlan {
  std::size_t rank;
  std::size_t fold;      // the sample's elements are the largest of so many
  std::size_t capacity;  // candidates that there is room for
};

// The rank is three and a half standard deviations more than the k are expected to put into the sample, so
// that the threshold is hardly ever too high; the room is for six more than candidates are expected then.
inline TopkPlan topk_plan(std::size_t n, std::size_t k) {
  const std::size_t fold = n > 16 * std::size_t{topk_sample} && k <= n / 16 ? topk_most_fold : 1;
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

// Uninitialised memory for the search.
template <typename T>
struct TopkWorkspace {
  TopkWorkspace(void* memory, const TopkPlan& plan)
      : candidates(static_cast<TopkElement<T>*>(memory)),
        scratch(candidates + plan.capacity),
        segments(reinterpret_cast<TopkSegment*>(scratch + plan.capacity)) {}

  static std::size_t bytes(const TopkPlan& plan, std::size_t n) {
    return 2 * plan.capacity * sizeof(TopkElement<T>) + (n / topk_segment + 1) * sizeof(TopkSegment);
  }

  TopkElement<T>* candidates;  // plan.capacity
  TopkElement<T>* scratch;     // plan.capacity
  TopkSegment* segments;       // n / topk_segment + 1
};

}  // namespace
}  // namespace gluon_gc
