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
inline Vec<float> keep(Vec<float> a, First present) {
  return {_mm512_maskz_mov_ps(mask(present), a.v)};
}

inline Vec<float> broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec<float> operator+(Vec<float> a, Vec<float> b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec<float> operator-(Vec<float> a, Vec<float> b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec<float> operator*(Vec<float> a, Vec<float> b) { return {_mm512_mul_ps(a.v, b.v)}; }

inline std::uint32_t negative(Vec<float> a) {
  return _mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_LT_OQ);
}
inline Vec<float> choose(std::uint32_t bits, Vec<float> a, Vec<float> b) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), b.v, a.v)};
}

template <>
struct LaneSums<Isa::avx512> {
  void add_magnitude(Vec<float> a) {
    const __m512 magnitude = _mm512_abs_ps(a.v);
    add(_mm512_cvtps_pd(_mm512_castps512_ps256(magnitude)),
        _mm512_cvtps_pd(_mm512_extractf32x8_ps(magnitude, 1)));
  }
  void add_magnitude(const Vec<double>& a) {
    add(_mm512_abs_pd(_mm512_loadu_pd(a.lane)), _mm512_abs_pd(_mm512_loadu_pd(a.lane + 8)));
  }
  double total() const {
    double lane[lanes];
    _mm512_storeu_pd(lane, low);
    _mm512_storeu_pd(lane + 8, high);
    return sum_lanes(lane);
  }
  void add(__m512d l, __m512d h) {
    low = _mm512_add_pd(low, l);
    high = _mm512_add_pd(high, h);
  }

  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
};

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
