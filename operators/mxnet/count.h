// How many elements k asks for.
#pragma once

#include <cstddef>

namespace gluon_gc {

// A share of n, of which at least one, or a number of elements: as gluon_gc/compression/base.py.
inline std::size_t element_count(double k, std::size_t n) {
  const double asked = k < 1 ? k * static_cast<double>(n) : k;
  if (asked >= static_cast<double>(n)) return n;
  return asked < 1 ? 1 : static_cast<std::size_t>(asked);
}

}  // namespace gluon_gc
