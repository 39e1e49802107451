// Exchanges lanes of a vector, and reduces a vector to one value. For kernel sources only (see isa.h). The portable
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

// combine(lane 0, lane 1, ...) for an operation on vectors that does not depend on the order of the lanes.
template <typename T, typename Combine>
inline T reduce(Vec<T> v, Combine combine) {
  v = combine(v, Swap<8>::lanes_of(v));
  v = combine(v, Swap<4>::lanes_of(v));
  v = combine(v, Swap<2>::lanes_of(v));
  v = combine(v, Swap<1>::lanes_of(v));
  T lane[lanes];
  store(v, lane, All{});
  return lane[0];
}

}  // namespace
}  // namespace gluon_gc
