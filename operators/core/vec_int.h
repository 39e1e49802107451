// A vector of sixteen int32 lanes, and conversions to and from vectors of T. For kernel sources only (see isa.h). The
// portable version is the specification, as in vec.h.
#pragma once

#include "core/vec.h"

namespace gluon_gc {
namespace {

using Ints = Vec<std::int32_t>;

#if defined(__AVX512F__)

template <>
struct Vec<std::int32_t> {
  __m512i v;
};

inline Ints ints(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints load_ints(const void* from) { return {_mm512_loadu_si512(from)}; }
inline void store(Ints a, std::int32_t* to) { _mm512_storeu_si512(to, a.v); }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Ints shift_right(Ints a, int count) { return {_mm512_srlv_epi32(a.v, ints(count).v)}; }
inline Ints keep(std::uint32_t bits, Ints a) {
  return {_mm512_maskz_mov_epi32(static_cast<__mmask16>(bits), a.v)};
}
inline std::uint32_t any_set(Ints a, Ints bits) { return _mm512_test_epi32_mask(a.v, bits.v); }
inline std::uint32_t none_set(Ints a, Ints bits) { return _mm512_testn_epi32_mask(a.v, bits.v); }

#elif defined(__AVX2__)

template <>
struct Vec<std::int32_t> {
  __m256i low, high;
};

inline Ints ints(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints load_ints(const void* from) {
  const __m256i* const halves = static_cast<const __m256i*>(from);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline void store(Ints a, std::int32_t* to) {
  __m256i* const halves = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(halves, a.low);
  _mm256_storeu_si256(halves + 1, a.high);
}
inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline Ints operator-(Ints a, Ints b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
inline Ints shift_right(Ints a, int count) {
  const __m128i by = _mm_cvtsi32_si128(count);
  return {_mm256_srl_epi32(a.low, by), _mm256_srl_epi32(a.high, by)};
}
inline Ints keep(std::uint32_t bits, Ints a) {
  const Vec<float> mask = mask_of(bits);
  return {_mm256_and_si256(a.low, _mm256_castps_si256(mask.low)),
          _mm256_and_si256(a.high, _mm256_castps_si256(mask.high))};
}
inline std::uint32_t none_set(Ints a, Ints bits) {
  const auto of_half = [](__m256i half, __m256i tested) {
    const __m256i none = _mm256_cmpeq_epi32(_mm256_and_si256(half, tested), _mm256_setzero_si256());
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(none)));
  };
  return of_half(a.low, bits.low) | of_half(a.high, bits.high) << 8;
}
inline std::uint32_t any_set(Ints a, Ints bits) { return none_set(a, bits) ^ all_bits(All{}); }

#else

inline Ints ints(std::int32_t x) {
  return generate<std::int32_t>([=](std::size_t) { return x; });
}
inline Ints load_ints(const void* from) {
  Ints result;
  std::memcpy(result.lane, from, sizeof(result.lane));
  return result;
}
inline void store(const Ints& a, std::int32_t* to) { std::memcpy(to, a.lane, sizeof(a.lane)); }
inline Ints shift_right(const Ints& a, int count) {
  return generate<std::int32_t>([&](std::size_t i) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a.lane[i]) >> count);
  });
}

// Lane i if bit i is set, else 0.
inline Ints keep(std::uint32_t bits, const Ints& a) { return choose(bits, a, ints(0)); }

// Bit i of the result: any (none) of the given bits is set in lane i.
inline std::uint32_t any_set(const Ints& a, const Ints& bits) {
  std::uint32_t result = 0;
#pragma omp simd reduction(| : result)
  for (std::size_t i = 0; i < lanes; ++i) result |= a.lane[i] & bits.lane[i] ? lane_bit[i] : 0;
  return result;
}
inline std::uint32_t none_set(const Ints& a, const Ints& bits) {
  return any_set(a, bits) ^ all_bits(All{});
}

#endif

template <typename Function>
inline Ints generate_ints(Function value) {
  std::int32_t lane[lanes];
#pragma omp simd
  for (std::size_t i = 0; i < lanes; ++i) lane[i] = value(i);
  return load_ints(lane);
}

constexpr std::size_t table_size = 32;

template <typename T>
inline Vec<T> operator/(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) { return a.lane[i] / b.lane[i]; });
}

template <typename T>
inline Vec<T> magnitude(const Vec<T>& v) {
  return generate<T>([&](std::size_t i) { return static_cast<T>(__builtin_fabs(v.lane[i])); });
}

// The lesser of |a| and b, where b >= 0; b if a lane of a is NaN.
template <typename T>
inline Vec<T> lesser_magnitude(const Vec<T>& a, const Vec<T>& b) {
  return lesser(magnitude(a), b);
}

// -v in the lanes whose bit is set.
template <typename T>
inline Vec<T> negate(std::uint32_t bits, const Vec<T>& v) {
  return generate<T>([&](std::size_t i) {
    const T x = v.lane[i];
    return bits & lane_bit[i] ? -x : x;
  });
}

// Rounds lanes down, for 0 <= lane < 2^31.
template <typename T>
inline Ints truncate(const Vec<T>& v) {
  return generate_ints([&](std::size_t i) { return static_cast<std::int32_t>(v.lane[i]); });
}

template <typename T>
inline Vec<T> convert(const Ints& v) {
  std::int32_t lane[lanes];
  store(v, lane);
  return generate<T>([&](std::size_t i) { return static_cast<T>(lane[i]); });
}

// table[lane], for 0 <= lane < 32.
template <typename T>
inline Vec<T> look_up(const T (&table)[table_size], const Ints& v) {
  std::int32_t lane[lanes];
  store(v, lane);
  return generate<T>([&](std::size_t i) { return table[lane[i]]; });
}

// floor(2^shift L(lane)), where L is log2 at powers of two and linear between them; 0 for lanes < 1.
template <typename T>
inline Ints linear_log2(const Vec<T>& v, int shift) {
  return generate_ints([&](std::size_t i) {
    const Bits<T> bits = bits_of(v.lane[i]);
    const Bits<T> above = bits > bits_of_one<T> ? bits - bits_of_one<T> : 0;
    return static_cast<std::int32_t>(shift < mantissa_bits<T> ? above >> (mantissa_bits<T> - shift)
                                                              : above << (shift - mantissa_bits<T>));
  });
}

#if defined(__AVX512F__)

inline Vec<float> operator/(Vec<float> a, Vec<float> b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec<float> magnitude(Vec<float> a) { return {_mm512_abs_ps(a.v)}; }
inline Vec<float> lesser_magnitude(Vec<float> a, Vec<float> b) {
  constexpr int lesser_magnitude = 0b10, without_sign = 0b10 << 2;
  return {_mm512_range_ps(a.v, b.v, without_sign | lesser_magnitude)};
}
inline Vec<float> negate(std::uint32_t bits, Vec<float> a) {
  return {_mm512_mask_xor_ps(a.v, static_cast<__mmask16>(bits), a.v, _mm512_set1_ps(-0.0f))};
}
inline Ints truncate(Vec<float> a) { return {_mm512_cvttps_epi32(a.v)}; }
template <>
inline Vec<float> convert<float>(const Ints& a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
inline Vec<float> look_up(const float (&table)[table_size], Ints a) {
  return {_mm512_permutex2var_ps(_mm512_loadu_ps(table), a.v, _mm512_loadu_ps(table + lanes))};
}
inline Ints linear_log2(Vec<float> a, int shift) {
  const __m512i above = _mm512_sub_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(bits_of_one<float>));
  return {_mm512_sll_epi32(_mm512_max_epi32(above, _mm512_setzero_si512()),
                           _mm_cvtsi32_si128(shift - mantissa_bits<float>))};
}

#elif defined(__AVX2__)

inline Vec<float> operator/(Vec<float> a, Vec<float> b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Vec<float> magnitude(Vec<float> a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Vec<float> negate(std::uint32_t bits, Vec<float> a) {
  const Vec<float> signs = choose(bits, broadcast(-0.0f), broadcast(0.0f));
  return {_mm256_xor_ps(a.low, signs.low), _mm256_xor_ps(a.high, signs.high)};
}
inline Ints truncate(Vec<float> a) { return {_mm256_cvttps_epi32(a.low), _mm256_cvttps_epi32(a.high)}; }
template <>
inline Vec<float> convert<float>(const Ints& a) {
  return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}
// Faster than gathering: the lowest three bits of a lane choose from each quarter of the table, the others a quarter.
inline __m256 look_up(const float (&table)[table_size], __m256i a) {
  const auto of_quarter = [&](int index) { return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8 * index), a); };
  const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(a, 28));
  const __m256 bit4 = _mm256_castsi256_ps(_mm256_slli_epi32(a, 27));
  return _mm256_blendv_ps(_mm256_blendv_ps(of_quarter(0), of_quarter(1), bit3),
                          _mm256_blendv_ps(of_quarter(2), of_quarter(3), bit3), bit4);
}
inline Vec<float> look_up(const float (&table)[table_size], Ints a) {
  return {look_up(table, a.low), look_up(table, a.high)};
}
inline __m256i linear_log2(__m256 a, int shift) {
  const __m256i above = _mm256_sub_epi32(_mm256_castps_si256(a), _mm256_set1_epi32(bits_of_one<float>));
  return _mm256_sll_epi32(_mm256_max_epi32(above, _mm256_setzero_si256()),
                          _mm_cvtsi32_si128(shift - mantissa_bits<float>));
}
inline Ints linear_log2(Vec<float> a, int shift) {
  return {linear_log2(a.low, shift), linear_log2(a.high, shift)};
}

#endif

}  // namespace
}  // namespace gluon_gc
