// Sixteen floats in one AVX-512 register. Included by vec.h.
#pragma once

#include <immintrin.h>

namespace gluon_gc {
namespace {

template <>
struct Vec<float> {
  __m512 v;
};

inline __mmask16 mask(First present) { return static_cast<__mmask16>((1u << present.count) - 1); }

inline Vec<float> load(const float* from, All) { return {_mm512_loadu_ps(from)}; }
inline Vec<float> load(const float* from, First present) {
  return {_mm512_maskz_loadu_ps(mask(present), from)};
}
inline void store(Vec<float> a, float* to, All) { _mm512_storeu_ps(to, a.v); }
inline void store(Vec<float> a, float* to, First present) {
  _mm512_mask_storeu_ps(to, mask(present), a.v);
}
inline void stream(Vec<float> a, float* to, All) { _mm512_stream_ps(to, a.v); }
inline Vec<float> keep(Vec<float> a, First present) {
  return {_mm512_maskz_mov_ps(mask(present), a.v)};
}

inline Vec<float> broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec<float> operator+(Vec<float> a, Vec<float> b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec<float> operator-(Vec<float> a, Vec<float> b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec<float> operator*(Vec<float> a, Vec<float> b) { return {_mm512_mul_ps(a.v, b.v)}; }

inline Vec<float> lesser(Vec<float> a, Vec<float> b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec<float> greater(Vec<float> a, Vec<float> b) { return {_mm512_max_ps(a.v, b.v)}; }
inline std::uint32_t less(Vec<float> a, Vec<float> b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline Vec<float> with_sign_of(Vec<float> signs, Vec<float> magnitude) {
  constexpr int a_or_b_and_c = 0xf8;
  const __m512i sign_bit = _mm512_set1_epi32(static_cast<int>(0x80000000));
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(
      _mm512_castps_si512(magnitude.v), _mm512_castps_si512(signs.v), sign_bit, a_or_b_and_c))};
}
inline std::uint32_t magnitude_at_least(Vec<float> a, std::uint32_t least) {
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff));
  return _mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32(static_cast<int>(least)));
}
inline Vec<float> larger_magnitude(Vec<float> a, Vec<float> b) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a.v), magnitude),
                                               _mm512_and_si512(_mm512_castps_si512(b.v), magnitude)))};
}
inline Vec<float> choose(std::uint32_t bits, Vec<float> a, Vec<float> b) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), b.v, a.v)};
}

template <>
struct Half<float> {
  static Vec<std::uint16_t> from(Vec<float> a) {
    Vec<std::uint16_t> halves;
    _mm256_storeu_epi16(halves.lane, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return halves;
  }
  static Vec<float> to(const Vec<std::uint16_t>& a) {
    return {_mm512_cvtph_ps(_mm256_loadu_epi16(a.lane))};
  }
};

}  // namespace
}  // namespace gluon_gc
