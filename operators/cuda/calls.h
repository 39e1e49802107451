// The calls that kernels are launched for: those of codecs that differ in n alone, or other work that has an n.
#pragma once

#include <algorithm>
#include <vector>

namespace gluon_gc {
namespace cuda {

template <typename Call>
using Calls = std::vector<Call>;

// make(call) of each, for kernels that need more than a call.
template <typename Call, typename Make>
auto each(const Calls<Call>& calls, Make make) {
  Calls<decltype(make(calls[0]))> made;
  for (const Call& call : calls) made.push_back(make(call));
  return made;
}

template <typename Call>
void largest_first(Calls<Call>& calls) {
  std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.n > b.n; });
}

}  // namespace cuda
}  // namespace gluon_gc
