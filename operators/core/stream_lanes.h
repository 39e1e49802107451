// Draws from the 32 segments of a block of the stream at once. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/stream.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

// The upper 32 bits of sixteen draws from each segment.
struct Tile {
  std::uint32_t upper[stream_lanes][lanes];
};

// The state of the stream in each segment of a block.
struct LaneStates {
  // All 64 bits of draw number `step`, from 0, in a segment.
  std::uint64_t draw(std::size_t segment, std::size_t step) const {
    Stream stream{{first[segment], second[segment]}};
    while (step-- != 0) stream();
    return stream();
  }

  std::uint64_t first[stream_lanes], second[stream_lanes];
};

#if defined(__AVX512F__)

// The streams of eight segments.
struct EightStreams {
  explicit EightStreams(const Stream* states) {
    const __m512i low = _mm512_loadu_si512(states), high = _mm512_loadu_si512(states + 4);
    first = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), high);
    second = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), high);
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

  __m512i first, second;
};

// Words 0 and 2 (even) or 1 and 3 (odd) of each 128 bits, from a, then from b.
inline __m512i even_words(__m512i a, __m512i b) {
  return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
}
inline __m512i odd_words(__m512i a, __m512i b) {
  return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd));
}

// Transposes a 4 x 4 matrix of 128-bit elements, and writes row j of the result to to[2 * j].
inline void transpose(const __m512i (&row)[4], std::uint32_t (*to)[lanes]) {
  const __m512i even01 = _mm512_shuffle_i64x2(row[0], row[1], 0x88);
  const __m512i odd01 = _mm512_shuffle_i64x2(row[0], row[1], 0xdd);
  const __m512i even23 = _mm512_shuffle_i64x2(row[2], row[3], 0x88);
  const __m512i odd23 = _mm512_shuffle_i64x2(row[2], row[3], 0xdd);
  _mm512_storeu_si512(to[0], _mm512_shuffle_i64x2(even01, even23, 0x88));
  _mm512_storeu_si512(to[2], _mm512_shuffle_i64x2(odd01, odd23, 0x88));
  _mm512_storeu_si512(to[4], _mm512_shuffle_i64x2(even01, even23, 0xdd));
  _mm512_storeu_si512(to[6], _mm512_shuffle_i64x2(odd01, odd23, 0xdd));
}

struct LaneStreams {
  static constexpr int count = stream_lanes / 8;

  explicit LaneStreams(const Stream* states)
      : streams{EightStreams(states), EightStreams(states + 8), EightStreams(states + 16),
                EightStreams(states + 24)} {}

  void save(LaneStates& states) const {
    for (int k = 0; k < count; ++k) {
      _mm512_storeu_si512(states.first + 8 * k, streams[k].first);
      _mm512_storeu_si512(states.second + 8 * k, streams[k].second);
    }
  }

  // A draw depends on the draw before it. Interleaving four independent streams hides that latency.
  void draw(Tile& tile) {
    __m512i even[count][4], odd[count][4];  // of eight segments: 0, 2, 4, 6 and 1, 3, 5, 7
    for (int i = 0; i < 4; ++i) {
      __m512i draws[count][4];
      for (int step = 0; step < 4; ++step) {
        for (int k = 0; k < count; ++k) draws[k][step] = streams[k]();
      }
      for (int k = 0; k < count; ++k) {
        const __m512i first = odd_words(draws[k][0], draws[k][1]);
        const __m512i second = odd_words(draws[k][2], draws[k][3]);
        even[k][i] = even_words(first, second);
        odd[k][i] = odd_words(first, second);
      }
    }
    for (int k = 0; k < count; ++k) {
      transpose(even[k], tile.upper + 8 * k);
      transpose(odd[k], tile.upper + 8 * k + 1);
    }
  }

  EightStreams streams[count];
};

#else

struct LaneStreams {
  explicit LaneStreams(const Stream* from) {
    for (std::size_t j = 0; j < stream_lanes; ++j) {
      states.first[j] = from[j].state[0];
      states.second[j] = from[j].state[1];
    }
  }

  void save(LaneStates& to) const { to = states; }

  void draw(Tile& tile) {
    for (std::size_t i = 0; i < lanes; ++i) {
      std::uint32_t upper[stream_lanes];
#pragma omp simd
      for (std::size_t j = 0; j < stream_lanes; ++j) {
        Stream stream{{states.first[j], states.second[j]}};
        upper[j] = static_cast<std::uint32_t>(stream() >> 32);
        states.first[j] = stream.state[0];
        states.second[j] = stream.state[1];
      }
      for (std::size_t j = 0; j < stream_lanes; ++j) tile.upper[j][i] = upper[j];
    }
  }

  LaneStates states;
};

#endif

}  // namespace
}  // namespace gluon_gc
