// A search, as the CPU's class plans it.
#pragma once

#include "core/compressors/topk_plan.h"
#include "cuda/compressors/topk_plan.h"

namespace gluon_gc {
namespace cuda {
namespace {

static_assert(sample_size == topk_sample, "the ranks of a plan are those in such a sample");

// For k of n elements.
inline Search search_for(std::size_t n, std::size_t k) {
  const TopkPlan plan = topk_plan(n, k);
  const auto number = [](std::size_t x) { return static_cast<uint32>(x); };
  return {number(k), number(plan.rank), number(plan.fold), plan.rank == 0 ? 0 : number(plan.capacity)};
}

// As many warps as the sample needs.
inline std::size_t sample_tiles(const Search& search) { return search.rank == 0 ? 0 : sample_size / 32; }

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
