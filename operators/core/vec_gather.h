// Loads sixteen elements of an array by their indices. For kernel sources only (see isa.h). The portable version is the
// specification, as in vec.h.
#pragma once

#include "core/vec.h"

namespace gluon_gc {
namespace {

// Lane i of the result is from[indices[i]].
template <typename T>
inline Vec<T> gather(const T* from, const std::uint16_t* indices) {
  return generate<T>([=](std::size_t i) { return from[indices[i]]; });
}

#if defined(__AVX512F__)

inline Vec<float> gather(const float* from, const std::uint16_t* indices) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(indices));
  return {_mm512_i32gather_ps(_mm512_cvtepu16_epi32(words), from, sizeof(float))};
}

#elif defined(__AVX2__)

inline __m256 gather_eight(const float* from, const std::uint16_t* indices) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(indices));
  return _mm256_i32gather_ps(from, _mm256_cvtepu16_epi32(words), sizeof(float));
}
inline Vec<float> gather(const float* from, const std::uint16_t* indices) {
  return {gather_eight(from, indices), gather_eight(from, indices + 8)};
}

#endif

}  // namespace
}  // namespace gluon_gc
