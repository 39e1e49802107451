// Lists the set bits of a word. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gluon_gc {
namespace {

// Calls step(places) for the places of the set bits, in ascending order, four at a time, because a branch for each bit
// would be unpredictable. Up to four of the last places mean nothing. Returns the number of set bits.
template <typename Step>
std::size_t for_each_four(std::uint64_t bits, Step step) {
  const std::size_t count = __builtin_popcountll(bits);
  do {
    int places[4];
    for (int& place : places) {
      place = __builtin_ctzll(bits | std::uint64_t{1} << 63);
      bits &= bits - 1;
    }
    step(places);
  } while (bits != 0);
  return count;
}
constexpr std::size_t surplus_places = 4;

// The places of the set bits of each byte, in ascending order.
struct BytePlaces {
  constexpr BytePlaces() : of() {
    for (int byte = 0; byte < 256; ++byte) {
      for (int place = 0, count = 0; place < 8; ++place) {
        if ((byte >> place & 1) != 0) of[byte][count++] = static_cast<std::uint8_t>(place);
      }
    }
  }
  std::uint8_t of[256][8];
};
constexpr BytePlaces byte_places;

// Writes first + each of eight places.
inline void add_to_each(std::uint32_t first, const std::uint8_t* places, std::uint32_t* to) {
#if defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(places));
  const __m256i sums = _mm256_add_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(static_cast<int>(first)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sums);
#else
  for (int j = 0; j < 8; ++j) to[j] = first + places[j];
#endif
}

// Writes first + the place of each set bit, in ascending order, and up to eight numbers more. Returns the number of set
// bits. For words with many set bits. Without branches.
inline std::size_t list_places(std::uint64_t bits, std::uint32_t first, std::uint32_t* to) {
  const std::uint32_t* const begin = to;
  for (int shift = 0; shift < 64; shift += 8) {
    const std::uint8_t byte = static_cast<std::uint8_t>(bits >> shift);
    add_to_each(first + shift, byte_places.of[byte], to);
    to += __builtin_popcount(byte);
  }
  return to - begin;
}

}  // namespace
}  // namespace gluon_gc
