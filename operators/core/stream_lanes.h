// Draws from sixteen segments of the stream at once. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/stream.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

static_assert(stream_lanes == lanes, "a lane a segment");

// The upper halves of sixteen draws from each of sixteen segments.
struct Tile {
  std::uint32_t upper[stream_lanes][lanes];
};

// The whole of draw `step` (from 0) after a state.
inline std::uint64_t draw_at(Stream state, std::size_t step) {
  while (step-- != 0) state();
  return state();
}

#if defined(__AVX512F__)

// Eight segments.
struct EightStreams {
  explicit EightStreams(const Stream* states) {
    const __m512i low = _mm512_loadu_si512(states), high = _mm512_loadu_si512(states + 4);
    first = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), high);
    second = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), high);
  }

  void save(Stream* states) const {
    const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    _mm512_storeu_si512(states, _mm512_permutex2var_epi64(first, low, second));
    _mm512_storeu_si512(states + 4, _mm512_permutex2var_epi64(first, high, second));
  }

  __m512i operator()() {
    constexpr int xor_of_three = 0x96;
    __m512i t = _mm512_xor_si512(first, _mm512_slli_epi64(first, 23));
    t = _mm512_xor_si512(t, _mm512_srli_epi64(t, 17));
    t = _mm512_ternarylogic_epi64(t, second, _mm512_srli_epi64(second, 26), xor_of_three);
    first = second;
    second = t;
    return _mm512_add_epi64(first, second);
  }

  // The upper halves of two draws, the first one below.
  __m512i pair() {
    const __m512i even = (*this)();
    return _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), (*this)());
  }

  __m512i first, second;
};

// Writes row j of the transposed 8 x 8 matrix of uint64 to to[j].
inline void transpose(const __m512i (&row)[8], std::uint32_t (*to)[lanes]) {
  __m512i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {  // a[i]: even columns of rows i and i + 1; a[i + 1]: the odd ones
    a[i] = _mm512_unpacklo_epi64(row[i], row[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi64(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {  // b[i + j]: columns j and j + 4 of rows i to i + 3
    for (int j = 0; j < 2; ++j) {
      b[i + j] = _mm512_shuffle_i64x2(a[i + j], a[i + j + 2], 0x88);
      b[i + j + 2] = _mm512_shuffle_i64x2(a[i + j], a[i + j + 2], 0xdd);
    }
  }
  for (int j = 0; j < 4; ++j) {
    _mm512_storeu_si512(to[j], _mm512_shuffle_i64x2(b[j], b[j + 4], 0x88));
    _mm512_storeu_si512(to[j + 4], _mm512_shuffle_i64x2(b[j], b[j + 4], 0xdd));
  }
}

struct LaneStreams {
  explicit LaneStreams(const Stream* states) : low(states), high(states + 8) {}

  void save(Stream* states) const {
    low.save(states);
    high.save(states + 8);
  }

  void draw(Tile& tile) {
    __m512i low_pairs[8], high_pairs[8];
    for (int i = 0; i < 8; ++i) {
      low_pairs[i] = low.pair();
      high_pairs[i] = high.pair();
    }
    transpose(low_pairs, tile.upper);
    transpose(high_pairs, tile.upper + 8);
  }

  EightStreams low, high;
};

#else

struct LaneStreams {
  explicit LaneStreams(const Stream* states) {
    for (std::size_t j = 0; j < lanes; ++j) {
      first[j] = states[j].state[0];
      second[j] = states[j].state[1];
    }
  }

  void save(Stream* states) const {
    for (std::size_t j = 0; j < lanes; ++j) states[j] = {{first[j], second[j]}};
  }

  void draw(Tile& tile) {
    for (std::size_t i = 0; i < lanes; ++i) {
      std::uint32_t upper[lanes];
#pragma omp simd
      for (std::size_t j = 0; j < lanes; ++j) {
        Stream one{{first[j], second[j]}};
        upper[j] = static_cast<std::uint32_t>(one() >> 32);
        first[j] = one.state[0];
        second[j] = one.state[1];
      }
      for (std::size_t j = 0; j < lanes; ++j) tile.upper[j][i] = upper[j];
    }
  }

  std::uint64_t first[lanes], second[lanes];
};

#endif

}  // namespace
}  // namespace gluon_gc
