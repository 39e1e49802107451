// Norms of p, in the same sweep as momentum and feedback. For kernel sources only (see isa.h).
#pragma once

#include "core/correction.h"
#include "core/parallel.h"
#include "core/sums.h"
#include "core/vec_int.h"

namespace gluon_gc {
namespace {

// The largest magnitude. Magnitudes are compared by their bits, so NaN is larger than infinity.
template <typename T>
struct Largest {
  void add(const Vec<T>& v) {
    constexpr Bits<T> all = static_cast<Bits<T>>(-1) >> 1;
#pragma omp simd
    for (std::size_t i = 0; i < lanes; ++i) {
      const Bits<T> bits = bits_of(v.lane[i]) & all;
      lane[i] = bits > lane[i] ? bits : lane[i];
    }
  }
  double total() const {
    Bits<T> largest = 0;
    for (const Bits<T> bits : lane) largest = bits > largest ? bits : largest;
    return from_bits(largest);
  }

  Bits<T> lane[lanes] = {};
};

#if defined(__AVX512F__)

template <>
struct Largest<float> {
  void add(Vec<float> a) { largest = _mm512_max_epi32(largest, _mm512_castps_si512(_mm512_abs_ps(a.v))); }
  double total() const {
    return from_bits(static_cast<uint32>(_mm512_reduce_max_epi32(largest)));
  }

  __m512i largest = _mm512_setzero_si512();
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
    for (const float x : lane) most = bits_of(x) > bits_of(most) ? x : most;
    return most;
  }

  __m256i largest = _mm256_setzero_si256();
};

#endif

// The larger of a and b; NaN is larger than all numbers.
inline double larger(double a, double b) { return a >= b || a != a ? a : b; }

// p of sixteen elements. Stores p in the residual if there is feedback.
template <typename T, typename Correct, typename Lanes>
Vec<T> corrected_at(const Correct& correct, T* residual, std::size_t i, Lanes present) {
  const Vec<T> p = correct(i, present);
  if constexpr (Correct::has_residual) store(p, residual + i, present);
  return keep(p, present);
}

// Writes momentum, stores p in the residual if there is feedback, and returns the largest |p|.
template <typename T, typename Correct>
T largest_magnitude(const Correct& correct, std::size_t n, T* residual, int threads) {
  const Blocks<16384> blocks(n);
  double largest[max_blocks];
  blocks.run_back(threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
    Largest<T> even, odd;
    sweep<2 * lanes>(begin, end, [=, &even, &odd](std::size_t i, auto present) {
      even.add(corrected_at(correct, residual, i, present.part(0)));
      odd.add(corrected_at(correct, residual, i + lanes, present.part(1)));
    });
    largest[block] = larger(even.total(), odd.total());
  });
  double most = 0;
  for (std::size_t block = 0; block < blocks.count; ++block) most = larger(most, largest[block]);
  return static_cast<T>(most);
}

// The same for the l2 norm, which is at most the largest T if the sum of squares is finite. `sums` is scratch memory of
// sums_bytes(n).
template <typename T, typename Correct>
T l2_norm(const Correct& correct, std::size_t n, T* residual, double* sums, int threads) {
  return norm_of_squares<T>(sum_over<Squares<T>>(n, sums, threads, [=](auto& sum, std::size_t i, auto present) {
    const Vec<T> low = corrected_at(correct, residual, i, present.part(0));
    const Vec<T> high = corrected_at(correct, residual, i + lanes, present.part(1));
    sum.add(low, high);
  }));
}

}  // namespace
}  // namespace gluon_gc
