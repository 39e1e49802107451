// The Search of a codec, planned as on the CPU, and the launches that topk and dgc share.
#pragma once

#include <algorithm>
#include <string>

#include "core/compressors/topk/plan.h"
#include "cuda/compressors/topk/plan.h"
#include "cuda/queue.h"

namespace gluon_gc {
namespace cuda {
namespace {

// The search for the k largest of n elements.
inline Search search_for(std::size_t n, std::size_t k) {
  const TopkPlan plan = topk_plan(n, k);
  const auto number = [](std::size_t x) { return static_cast<uint32>(x); };
  return {number(k), number(plan.rank), number(plan.fold), plan.rank == 0 ? 0 : number(plan.capacity)};
}

// Queues the sum of sparse payloads: kernel NAME_begin_sum, and NAME_add for each payload.
template <typename T, typename Call>
void add_up(const Queue& queue, const std::string& name, const Calls<Call>& calls) {
  Size most = 0;
  for (const Call& call : calls) most = std::max(most, call.count);
  queue.launch<T>(name + "_begin_sum", calls);
  for (Size number = 0; number < most; ++number) queue.launch<T>(name + "_add", calls, number);
}

// Queues kernel NAME once for each digit of a magnitude.
template <typename T, typename Call>
void narrow(const Queue& queue, const std::string& name, const Calls<Call>& calls) {
  for (int digit = 0; digit < digit_count<T>; ++digit) queue.launch<T>(name, calls, digit);
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
