// Sums in float64 by the fixed tree of sum_tree.h. For kernel sources only (see isa.h).
#pragma once

#include "core/parallel.h"
#include "core/sum_tree.h"
#include "core/vec.h"
#include "core/vec_int.h"

namespace gluon_gc {
namespace {

static_assert(sum_chains == 2 * lanes);

template <std::size_t half = sum_chains / 2>
inline double butterfly(double (&chain)[sum_chains]) {
  if constexpr (half == 0) {
    return chain[0];
  } else {
#pragma omp simd
    for (std::size_t j = 0; j < half; ++j) chain[j] += chain[j + half];
    return butterfly<half / 2>(chain);
  }
}

// Adds the sums of `count` tiles. Overwrites them.
inline double sum_tiles(double* sums, std::size_t count) {
  for (; count > 1; count = tiles_of(count)) {
    for (std::size_t begin = 0; begin < count; begin += sum_tile) {
      const std::size_t size = count - begin < sum_tile ? count - begin : sum_tile;
      double chain[sum_chains] = {};
      for (std::size_t i = 0; i < size; ++i) chain[i % sum_chains] += sums[begin + i];
      sums[begin / sum_tile] = butterfly(chain);
    }
  }
  return count == 0 ? 0 : sums[0];
}

// The sum of |x| over a tile. `add` takes 32 elements at a time. The total is not finite if an element is not.
template <typename T>
struct Magnitudes {
  void add(const Vec<T>& low, const Vec<T>& high) {
#pragma omp simd
    for (std::size_t i = 0; i < lanes; ++i) {
      chain[i] += __builtin_fabs(static_cast<double>(low.lane[i]));
      chain[i + lanes] += __builtin_fabs(static_cast<double>(high.lane[i]));
    }
  }
  double total() { return butterfly(chain); }

  double chain[sum_chains] = {};
};

// The sum of squares over a tile.
template <typename T>
struct Squares {
  void add(const Vec<T>& low, const Vec<T>& high) {
#pragma omp simd
    for (std::size_t i = 0; i < lanes; ++i) {
      const auto x = static_cast<double>(low.lane[i]), y = static_cast<double>(high.lane[i]);
      chain[i] += x * x;
      chain[i + lanes] += y * y;
    }
  }
  double total() { return butterfly(chain); }

  double chain[sum_chains] = {};
};

// The square of a float is exact in float64, so a fused multiply-add has the same result as a product and a sum.
#if defined(__AVX512F__)

inline double add_neighbours(__m512d sum) {  // butterfly: j += j + 4, then j + 2, j + 1
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(sum), _mm512_extractf64x4_pd(sum, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// Conversion to float64 is slow beside the rest of a sweep. So this class only shifts the bits of |x| left by 29, to
// their place in a float64. The result is |x| 2^-896, exactly, for subnormal x too. NaNs and infinities lose their
// meaning, so `largest` keeps the largest bits to detect them. Even and odd chains have separate registers.
template <>
struct Magnitudes<float> {
  void add(Vec<float> low, Vec<float> high) {
    add(low, even[0], odd[0]);
    add(high, even[1], odd[1]);
  }
  void add(Vec<float> a, __m512d& even, __m512d& odd) {
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff));
    const __m512i even_bits = _mm512_mul_epu32(bits, _mm512_set1_epi64(1 << 29));
    const __m512i odd_bits = _mm512_and_si512(_mm512_srli_epi64(bits, 3), _mm512_set1_epi64(0x0fffffffe0000000));
    largest = _mm512_max_epu32(largest, bits);
    even = _mm512_add_pd(even, _mm512_castsi512_pd(even_bits));
    odd = _mm512_add_pd(odd, _mm512_castsi512_pd(odd_bits));
  }
  double total() const {
    if (_mm512_cmpge_epu32_mask(largest, _mm512_set1_epi32(0x7f800000))) return __builtin_nan("");
    return (above(even) + above(odd)) * 0x1p896;
  }
  // The sum of the even or the odd chains: chain 0 or 1 before the last step of the butterfly.
  static double above(const __m512d (&chains)[2]) { return add_neighbours(_mm512_add_pd(chains[0], chains[1])); }

  __m512d even[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()}, odd[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
  __m512i largest = _mm512_setzero_si512();
};

template <>
struct Squares<float> {
  void add(Vec<float> low, Vec<float> high) {
    add(0, _mm512_castps512_ps256(low.v));
    add(1, _mm512_extractf32x8_ps(low.v, 1));
    add(2, _mm512_castps512_ps256(high.v));
    add(3, _mm512_extractf32x8_ps(high.v, 1));
  }
  void add(int k, __m256 a) {
    const __m512d x = _mm512_cvtps_pd(a);
    sums[k] = _mm512_fmadd_pd(x, x, sums[k]);
  }
  double total() const {
    const __m512d first = _mm512_add_pd(sums[0], sums[2]), second = _mm512_add_pd(sums[1], sums[3]);
    return add_neighbours(_mm512_add_pd(first, second));
  }

  __m512d sums[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd()};
};

#elif defined(__AVX2__)

// The 32 chains, four in each register.
struct FourChains {
  template <typename Step>
  void step(Vec<float> low, Vec<float> high, Step add) {
    const __m256 parts[4] = {low.low, low.high, high.low, high.high};
    for (int k = 0; k < 4; ++k) {
      sums[2 * k] = add(sums[2 * k], _mm256_cvtps_pd(_mm256_castps256_ps128(parts[k])));
      sums[2 * k + 1] = add(sums[2 * k + 1], _mm256_cvtps_pd(_mm256_extractf128_ps(parts[k], 1)));
    }
  }
  double total() const {
    __m256d sum[4];
    for (int k = 0; k < 4; ++k) sum[k] = _mm256_add_pd(sums[k], sums[k + 4]);
    const __m256d four = _mm256_add_pd(_mm256_add_pd(sum[0], sum[2]), _mm256_add_pd(sum[1], sum[3]));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }

  __m256d sums[8] = {};
};

template <>
struct Magnitudes<float> : FourChains {
  void add(Vec<float> low, Vec<float> high) {
    step(magnitude(low), magnitude(high), [](__m256d sum, __m256d x) { return _mm256_add_pd(sum, x); });
  }
};

template <>
struct Squares<float> : FourChains {
  void add(Vec<float> low, Vec<float> high) {
    step(low, high, [](__m256d sum, __m256d x) { return _mm256_fmadd_pd(x, x, sum); });
  }
};

#endif

// Calls step(total, i, present) for every 32 elements; `step` adds them to the Total of their tile. Returns the sum of
// all totals. `sums` is scratch memory of sums_bytes(n). Calls prepare(begin, end) before a tile.
template <typename Total, typename Step, typename Prepare>
double sum_over(std::size_t n, double* sums, int threads, Step step, Prepare prepare) {
  // Not inlined, because GCC 12 would then keep the total in memory.
  const auto sum_block = [=](std::size_t, std::size_t begin, std::size_t end) __attribute__((noinline)) {
    for (; begin < end; begin += sum_tile) {
      Total total;
      const std::size_t tile_end = end - begin < sum_tile ? end : begin + sum_tile;
      prepare(begin, tile_end);
      sweep<sum_chains>(begin, tile_end, [=, &total](std::size_t i, auto present) {
        step(total, i, present);
      });
      sums[begin / sum_tile] = total.total();
    }
  };
  Blocks<16384>(n).run(threads, sum_block);
  return sum_tiles(sums, tiles_of(n));
}

template <typename Total, typename Step>
double sum_over(std::size_t n, double* sums, int threads, Step step) {
  return sum_over<Total>(n, sums, threads, step, [](std::size_t, std::size_t) {});
}

}  // namespace
}  // namespace gluon_gc
