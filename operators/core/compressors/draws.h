// Draws of random elements. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/stream.h"

namespace gluon_gc {
namespace {

// Draws k of n elements. Calls visit(i, index) for each draw i whose index is in [first, last), and before that
// fetch(index), which can prefetch.
template <typename Fetch, typename Visit>
void for_each_draw(Stream stream, std::size_t n, std::size_t k, std::size_t first, std::size_t last,
                   Fetch fetch, Visit visit) {
  constexpr std::size_t batch = 64;
  if (n == 0) return;
  const Modulo modulo(n);
  for (std::size_t begin = 0; begin < k; begin += batch) {
    const std::size_t count = k - begin < batch ? k - begin : batch;
    std::size_t draws[batch], indices[batch], hits = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = modulo(stream());
      draws[hits] = begin + i;
      indices[hits] = index;
      hits += index - first < last - first;
    }
    for (std::size_t hit = 0; hit < hits; ++hit) fetch(indices[hit]);
    for (std::size_t hit = 0; hit < hits; ++hit) visit(draws[hit], indices[hit]);
  }
}

}  // namespace
}  // namespace gluon_gc
