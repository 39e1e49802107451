// The rotation of blockwise: random signs, then the Walsh-Hadamard transform. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/blockwise/format.h"
#include "core/vec_int.h"
#include "core/vec_swap.h"

namespace gluon_gc {
namespace {

// One stage inside a vector: lanes i and i + distance become their sum and their difference.
template <int distance, typename T>
inline Vec<T> butterfly_in(const Vec<T>& v) {
  return Swap<distance>::lanes_of(v) + negate(upper_lanes<distance>, v);
}

// The stage for distances d and 2 d: d-th neighbours become their sums and their differences, and then those.
template <typename T>
void butterfly_twice(T* x, std::size_t d) {
  const Vec<T> a = load(x, All{}), b = load(x + d, All{}), c = load(x + 2 * d, All{}), e = load(x + 3 * d, All{});
  const Vec<T> sum = a + b, difference = a - b, next_sum = c + e, next_difference = c - e;
  store(sum + next_sum, x, All{});
  store(difference + next_difference, x + d, All{});
  store(sum - next_sum, x + 2 * d, All{});
  store(difference - next_difference, x + 3 * d, All{});
}

// Writes the transform of n elements, not normalised. n is a power of two, at least 64. at(i) returns the sixteen
// elements from i. For distance 1, 2, 4, ..., n / 2, in this order, all pairs of elements at this distance become their
// sum and their difference. Two distances share a pass over memory.
template <typename T, typename At>
void hadamard_transform(At at, std::size_t n, T* x) {
  for (std::size_t i = 0; i < n; i += lanes) {
    const Vec<T> quads = butterfly_in<2>(butterfly_in<1>(at(i)));
    store(butterfly_in<8>(butterfly_in<4>(quads)), x + i, All{});
  }
  std::size_t distance = lanes;
  for (; 4 * distance <= n; distance *= 4) {
    for (std::size_t begin = 0; begin < n; begin += 4 * distance) {
      for (std::size_t i = begin; i < begin + distance; i += lanes) butterfly_twice(x + i, distance);
    }
  }
  for (std::size_t i = 0; 2 * distance == n && i < distance; i += lanes) {
    const Vec<T> a = load(x + i, All{}), b = load(x + i + distance, All{});
    store(a + b, x + i, All{});
    store(a - b, x + i + distance, All{});
  }
}

// The rotation of blocks of n elements, and its inverse.
struct Rotation {
  explicit Rotation(std::size_t n) : n(n) {
    Stream stream = blockwise_signs();
    for (std::uint64_t& draw : signs) draw = stream();
  }

  // Of the sixteen elements from i: bit j is set if the sign of element i + j changes.
  std::uint32_t signs_at(std::size_t i) const { return signs[i / 64] >> i % 64 & 0xffff; }

  // Writes the rotated block x.
  template <typename T>
  void forward(const T* x, T* to) const {
    const Vec<T> share = broadcast(T{1} / static_cast<T>(n));
    hadamard_transform([=](std::size_t i) { return negate(signs_at(i), load(x + i, All{})) * share; }, n, to);
  }

  // Rotates a block back, in place.
  template <typename T>
  void back(T* x) const {
    hadamard_transform([=](std::size_t i) { return load(x + i, All{}); }, n, x);
    for (std::size_t i = 0; i < n; i += lanes) store(negate(signs_at(i), load(x + i, All{})), x + i, All{});
  }

  const std::size_t n;
  std::uint64_t signs[blockwise_sign_draws];
};

}  // namespace
}  // namespace gluon_gc
