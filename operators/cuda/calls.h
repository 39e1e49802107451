// The calls that a kernel is launched for. Each call has its number of elements, n.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

template <typename Call>
using Calls = std::vector<Call>;

// Returns make(call) for each call.
template <typename Call, typename Make>
auto each(const Calls<Call>& calls, Make make) {
  Calls<decltype(make(calls[0]))> made;
  for (const Call& call : calls) made.push_back(make(call));
  return made;
}

// The most thread blocks that have work in a call, if a warp takes a tile. Calls that share their work in another way
// have their own function.
template <typename Call>
Size most_thread_blocks(const Call& call) {
  constexpr Size warps = block_threads / 32;
  return (tiles_of(call.n) + warps - 1) / warps;
}

// Sorts calls by n, as Queue::launch requires.
template <typename Call>
void largest_first(Calls<Call>& calls) {
  std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.n > b.n; });
}

template <typename Call, typename Predicate>
bool any(const Calls<Call>& calls, Predicate is) {
  return std::any_of(calls.begin(), calls.end(), is);
}

}  // namespace cuda
}  // namespace gluon_gc
