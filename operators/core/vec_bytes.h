// Conversions between sixteen bytes and vectors of T. For kernel sources only (see isa.h). The portable version is the
// specification, as in vec.h.
#pragma once

#include "core/vec.h"

namespace gluon_gc {
namespace {

// Each byte as a number of T.
template <typename T>
inline Vec<T> widen(const Vec<std::uint8_t>& v) {
  return generate<T>([&](std::size_t i) { return static_cast<T>(v.lane[i]); });
}

// The lowest byte of the bits of each lane.
template <typename T>
inline Vec<std::uint8_t> lowest_bytes(const Vec<T>& v) {
  return generate<std::uint8_t>(
      [&](std::size_t i) { return static_cast<std::uint8_t>(bits_of(v.lane[i])); });
}

// Stores the lowest bytes of two vectors, 32 in all.
template <typename T>
inline void store_lowest_bytes(const Vec<T>& a, const Vec<T>& b, std::uint8_t* to) {
  store(lowest_bytes(a), to, All{});
  store(lowest_bytes(b), to + lanes, All{});
}

#if defined(__AVX512F__)

template <>
inline Vec<float> widen<float>(const Vec<std::uint8_t>& a) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a.lane));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}
inline Vec<std::uint8_t> lowest_bytes(Vec<float> a) {
  Vec<std::uint8_t> bytes;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes.lane), _mm512_cvtepi32_epi8(_mm512_castps_si512(a.v)));
  return bytes;
}

#elif defined(__AVX2__)

template <>
inline Vec<float> widen<float>(const Vec<std::uint8_t>& a) {
  const auto eight = [](const std::uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  };
  return {eight(a.lane), eight(a.lane + 8)};
}
inline Vec<std::uint8_t> lowest_bytes(Vec<float> a) {
  const __m256i byte = _mm256_set1_epi32(0xff);
  const __m256i low = _mm256_and_si256(_mm256_castps_si256(a.low), byte);
  const __m256i high = _mm256_and_si256(_mm256_castps_si256(a.high), byte);
  constexpr int in_order = 0xd8;  // packing interleaves the 64-bit quarters
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), in_order);
  Vec<std::uint8_t> bytes;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes.lane),
                   _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  return bytes;
}

// Fewer instructions than two calls of lowest_bytes.
inline void store_lowest_bytes(Vec<float> a, Vec<float> b, std::uint8_t* to) {
  const __m256i byte = _mm256_set1_epi32(0xff);
  const auto words = [=](Vec<float> v) {
    return _mm256_packus_epi32(_mm256_and_si256(_mm256_castps_si256(v.low), byte),
                               _mm256_and_si256(_mm256_castps_si256(v.high), byte));
  };
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing interleaves 32-bit parts
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words(a), words(b)), in_order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

#endif

}  // namespace
}  // namespace gluon_gc
