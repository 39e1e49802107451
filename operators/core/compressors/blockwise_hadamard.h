// The rotation of blockwise: random signs, then the Walsh-Hadamard transform. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/blockwise_format.h"
#include "core/generator.h"
#include "core/vec_int.h"
#include "core/vec_swap.h"

namespace gluon_gc {
namespace {

// One stage inside a vector: lanes i and i + distance become their sum and their difference.
template <int distance, typename T>
inline Vec<T> butterfly_in(const Vec<T>& v) {
  return Swap<distance>::lanes_of(v) + negate(upper_lanes<distance>, v);
}

// The transform of n elements in place, not normalised. n is a power of two, at least 16. For distance 1, 2, 4, ...,
// n / 2, in this order, all pairs of elements at this distance become their sum and their difference.
template <typename T>
void hadamard_transform(T* x, std::size_t n) {
  for (std::size_t i = 0; i < n; i += lanes) {
    const Vec<T> quads = butterfly_in<2>(butterfly_in<1>(load(x + i, All{})));
    store(butterfly_in<8>(butterfly_in<4>(quads)), x + i, All{});
  }
  for (std::size_t distance = lanes; distance < n; distance *= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * distance) {
      for (std::size_t i = begin; i < begin + distance; i += lanes) {
        const Vec<T> a = load(x + i, All{}), b = load(x + i + distance, All{});
        store(a + b, x + i, All{});
        store(a - b, x + i + distance, All{});
      }
    }
  }
}

// The rotation of blocks of n elements, and its inverse.
struct Rotation {
  explicit Rotation(std::size_t n) : n(n) {
    Stream stream{{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9}};
    for (std::uint64_t& draw : signs) draw = stream();
  }

  // Of the sixteen elements from i: bit j is set if the sign of element i + j changes.
  std::uint32_t signs_at(std::size_t i) const { return signs[i / 64] >> i % 64 & 0xffff; }

  template <typename T>
  void forward(T* x) const {
    const Vec<T> share = broadcast(T{1} / static_cast<T>(n));
    for (std::size_t i = 0; i < n; i += lanes) store(negate(signs_at(i), load(x + i, All{})) * share, x + i, All{});
    hadamard_transform(x, n);
  }

  template <typename T>
  void back(T* x) const {
    hadamard_transform(x, n);
    for (std::size_t i = 0; i < n; i += lanes) store(negate(signs_at(i), load(x + i, All{})), x + i, All{});
  }

  const std::size_t n;
  std::uint64_t signs[blockwise_most_block / 64];
};

}  // namespace
}  // namespace gluon_gc
