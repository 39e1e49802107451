// Exchanges lanes of a vector, and reduces vectors to one value each. For kernel sources only (see isa.h). The portable
// version is the specification, as in vec.h.
#pragma once

#include "core/vec.h"

namespace gluon_gc {
namespace {

// Lane i of the result is lane i ^ distance; distance is 1, 2, 4 or 8.
template <int distance>
struct Swap {
  template <typename T>
  static Vec<T> lanes_of(const Vec<T>& v) {
    return generate<T>([&](std::size_t i) { return v.lane[i ^ distance]; });
  }

#if defined(__AVX512F__)
  static Vec<float> lanes_of(Vec<float> a) {
    constexpr int by_one = 0xb1, by_two = 0x4e;
    switch (distance) {
      case 1: return {_mm512_permute_ps(a.v, by_one)};
      case 2: return {_mm512_permute_ps(a.v, by_two)};
      case 4: return {_mm512_shuffle_f32x4(a.v, a.v, by_one)};
      default: return {_mm512_shuffle_f32x4(a.v, a.v, by_two)};
    }
  }
#elif defined(__AVX2__)
  static Vec<float> lanes_of(Vec<float> a) {
    constexpr int by_one = 0xb1, by_two = 0x4e;
    switch (distance) {
      case 1: return {_mm256_permute_ps(a.low, by_one), _mm256_permute_ps(a.high, by_one)};
      case 2: return {_mm256_permute_ps(a.low, by_two), _mm256_permute_ps(a.high, by_two)};
      case 4: return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
      default: return {a.high, a.low};
    }
  }
#endif
};

// The lanes i that have the bit `distance` set.
template <int distance>
constexpr std::uint32_t upper_lanes = distance == 1 ? 0xaaaa : distance == 2 ? 0xcccc : distance == 4 ? 0xf0f0 : 0xff00;

// Combines the lanes of sixteen rows: lane i of the result is combine(lane 0 of row i, lane 1 of row i, ...), for an
// operation on vectors that does not depend on the order of the lanes. The rows are overwritten.
template <int distance = lanes / 2, typename T, typename Combine>
inline Vec<T> reduce_rows(Vec<T>* rows, Combine combine) {
  if constexpr (distance == 0) {
    return rows[0];
  } else {
    constexpr std::uint32_t upper = upper_lanes<distance>;
    for (int i = 0; i < distance; ++i) {
      const Vec<T> a = rows[i], b = rows[i + distance];
      rows[i] = combine(choose(upper, b, a), Swap<distance>::lanes_of(choose(upper, a, b)));
    }
    return reduce_rows<distance / 2>(rows, combine);
  }
}

}  // namespace
}  // namespace gluon_gc
