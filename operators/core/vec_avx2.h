// Sixteen floats in two AVX registers. Included by vec.h.
#pragma once

#include <immintrin.h>

namespace gluon_gc {
namespace {

template <>
struct Vec<float> {
  __m256 low, high;
};

inline Vec<float> load(const float* from, All) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
inline Vec<float> load(const float* from, First present) {
  float lane[lanes] = {};
  std::memcpy(lane, from, present.count * sizeof(float));
  return load(lane, All{});
}
inline void store(Vec<float> a, float* to, All) {
  _mm256_storeu_ps(to, a.low);
  _mm256_storeu_ps(to + 8, a.high);
}
inline void store(Vec<float> a, float* to, First present) {
  float lane[lanes];
  store(a, lane, All{});
  std::memcpy(to, lane, present.count * sizeof(float));
}
inline void stream(Vec<float> a, float* to, All) {
  _mm256_stream_ps(to, a.low);
  _mm256_stream_ps(to + 8, a.high);
}
inline Vec<float> keep(Vec<float> a, First present) {
  float lane[lanes];
  store(a, lane, All{});
  return load(lane, present);
}

inline Vec<float> broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec<float> operator+(Vec<float> a, Vec<float> b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vec<float> operator-(Vec<float> a, Vec<float> b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vec<float> operator*(Vec<float> a, Vec<float> b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

inline Vec<float> lesser(Vec<float> a, Vec<float> b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Vec<float> greater(Vec<float> a, Vec<float> b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline std::uint32_t less(Vec<float> a, Vec<float> b) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)) |
                                    _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)) << 8);
}
inline Vec<float> with_sign_of(Vec<float> signs, Vec<float> magnitude) {
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(magnitude.low, _mm256_and_ps(signs.low, sign_bit)),
          _mm256_or_ps(magnitude.high, _mm256_and_ps(signs.high, sign_bit))};
}
inline __m256 magnitude_above(__m256 a, int bound) {
  const __m256i bits = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(bound)));
}
inline std::uint32_t magnitude_at_least(Vec<float> a, std::uint32_t least) {
  const int bound = static_cast<int>(least) - 1;  // magnitudes fit into a signed int
  return static_cast<std::uint32_t>(_mm256_movemask_ps(magnitude_above(a.low, bound)) |
                                    _mm256_movemask_ps(magnitude_above(a.high, bound)) << 8);
}
inline __m256 larger_magnitude(__m256 a, __m256 b) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(a), magnitude),
                                              _mm256_and_si256(_mm256_castps_si256(b), magnitude)));
}
inline Vec<float> larger_magnitude(Vec<float> a, Vec<float> b) {
  return {larger_magnitude(a.low, b.low), larger_magnitude(a.high, b.high)};
}
// All bits of lane i if bit i is set, else none.
inline Vec<float> mask_of(std::uint32_t bits) {
  const __m256i one = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  const __m256i low = _mm256_cmpeq_epi32(_mm256_and_si256(all, one), one);
  const __m256i high = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_srli_epi32(all, 8), one), one);
  return {_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)};
}
inline Vec<float> choose(std::uint32_t bits, Vec<float> a, Vec<float> b) {
  const Vec<float> mask = mask_of(bits);
  return {_mm256_blendv_ps(b.low, a.low, mask.low), _mm256_blendv_ps(b.high, a.high, mask.high)};
}
inline Vec<float> choose_less(Vec<float> a, Vec<float> b, Vec<float> x, Vec<float> y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}

template <>
struct Half<float> {
  static Vec<std::uint16_t> from(Vec<float> a) {
    Vec<std::uint16_t> halves;
    __m128i* const to = reinterpret_cast<__m128i*>(halves.lane);
    _mm_storeu_si128(to, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(to + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
    return halves;
  }
  static Vec<float> to(const Vec<std::uint16_t>& a) {
    const __m128i* const from = reinterpret_cast<const __m128i*>(a.lane);
    return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
  }
};

}  // namespace
}  // namespace gluon_gc
