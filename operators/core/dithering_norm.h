// The first sweep of dithering: momentum and feedback, and the norm of what comes out of them. For kernel
// sources only (see isa.h).
#pragma once

#include "core/correction.h"
#include "core/dithering_levels.h"
#include "core/parallel.h"

namespace gluon_gc {
namespace {

// The largest magnitude, by its bits, so that a NaN is larger than infinity.
template <typename T>
struct Largest {
  void add(const Vec<T>& v) {
    constexpr Bits<T> all = static_cast<Bits<T>>(-1) >> 1;
#pragma omp simd
    for (std::size_t i = 0; i < lanes; ++i) {
      const Bits<T> bits = read_bits(v.lane[i]) & all;
      lane[i] = bits > lane[i] ? bits : lane[i];
    }
  }
  double total() const {
    Bits<T> largest = 0;
    for (const Bits<T> bits : lane) largest = bits > largest ? bits : largest;
    T x;
    std::memcpy(&x, &largest, sizeof(x));
    return x;
  }

  Bits<T> lane[lanes] = {};
};

// The sum of squares in float64, a lane each, then in the order of the lanes.
template <typename T>
struct Squares {
  void add(const Vec<T>& v) {
#pragma omp simd
    for (std::size_t i = 0; i < lanes; ++i) {
      const auto x = static_cast<double>(v.lane[i]);
      lane[i] += x * x;
    }
  }
  double total() const { return sum_lanes(lane); }

  double lane[lanes] = {};
};

// The square of a float is exact in float64, so a fused multiply-add rounds as a product and a sum do.
#if defined(__AVX512F__)

template <>
struct Largest<float> {
  void add(Vec<float> a) { largest = _mm512_max_epi32(largest, _mm512_castps_si512(_mm512_abs_ps(a.v))); }
  double total() const {
    const int bits = _mm512_reduce_max_epi32(largest);
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
  }

  __m512i largest = _mm512_setzero_si512();
};

template <>
struct Squares<float> {
  void add(Vec<float> a) {
    const __m512d x = _mm512_cvtps_pd(_mm512_castps512_ps256(a.v));
    const __m512d y = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1));
    low = _mm512_fmadd_pd(x, x, low);
    high = _mm512_fmadd_pd(y, y, high);
  }
  double total() const {
    double lane[lanes];
    _mm512_storeu_pd(lane, low);
    _mm512_storeu_pd(lane + lanes / 2, high);
    return sum_lanes(lane);
  }

  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
};

#elif defined(__AVX2__)

template <>
struct Largest<float> {
  void add(Vec<float> a) {
    const Vec<float> b = magnitude(a);
    largest = _mm256_max_epi32(largest, _mm256_castps_si256(b.low));
    largest = _mm256_max_epi32(largest, _mm256_castps_si256(b.high));
  }
  double total() const {
    float lane[lanes / 2], most = 0;
    _mm256_storeu_ps(lane, _mm256_castsi256_ps(largest));
    for (const float x : lane) most = read_bits(x) > read_bits(most) ? x : most;
    return most;
  }

  __m256i largest = _mm256_setzero_si256();
};

template <>
struct Squares<float> {
  void add(Vec<float> a) {
    add(0, _mm256_castps256_ps128(a.low));
    add(1, _mm256_extractf128_ps(a.low, 1));
    add(2, _mm256_castps256_ps128(a.high));
    add(3, _mm256_extractf128_ps(a.high, 1));
  }
  void add(int k, __m128 a) {
    const __m256d x = _mm256_cvtps_pd(a);
    sums[k] = _mm256_fmadd_pd(x, x, sums[k]);
  }
  double total() const {
    double lane[lanes];
    for (int k = 0; k < 4; ++k) _mm256_storeu_pd(lane + 4 * k, sums[k]);
    return sum_lanes(lane);
  }

  __m256d sums[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
};

#endif

// b if it is larger or a NaN.
inline double larger(double a, double b) { return a >= b || a != a ? a : b; }

// Updates momentum, stores p in the residual if there is one, and returns the norm of p.
template <bool l2, typename T, typename Correct>
T corrected_norm(const Correct& correct, std::size_t n, T* residual, int threads) {
  using Total = std::conditional_t<l2, Squares<T>, Largest<T>>;
  const Blocks<16384> blocks(n);
  double totals[max_blocks];
  blocks.run(threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
    Total even, odd;
    const auto step = [=](std::size_t i, auto present, Total& total) {
      const Vec<T> p = correct(i, present);
      if constexpr (Correct::feedback != Feedback::none) store(p, residual + i, present);
      total.add(keep(p, present));
    };
    sweep<2 * lanes>(begin, end, [=, &even, &odd](std::size_t i, auto present) {
      step(i, present.part(0), even);
      step(i + lanes, present.part(1), odd);
    });
    totals[block] = l2 ? even.total() + odd.total() : larger(even.total(), odd.total());
  });
  double total = 0;
  for (std::size_t block = 0; block < blocks.count; ++block) {
    total = l2 ? total + totals[block] : larger(total, totals[block]);
  }
  const double norm = l2 ? __builtin_sqrt(total) : total;
  return is_finite(norm) && norm > largest_finite<T> ? largest_finite<T> : static_cast<T>(norm);
}

}  // namespace
}  // namespace gluon_gc
