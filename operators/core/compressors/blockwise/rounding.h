// The rounding of blockwise: the scales of blocks, and the rounding of elements to codes. For kernel sources only (see
// isa.h).
#pragma once

#include "core/compressors/blockwise/format.h"
#include "core/vec_bytes.h"
#include "core/vec_int.h"
#include "core/vec_swap.h"

namespace gluon_gc {
namespace {

constexpr std::size_t tile_elements = blockwise_tile;  // they fit into the first-level cache

// The parameters of a tile's blocks, as in the payload and as T.
template <typename T>
struct Scales {
  static constexpr std::size_t most = tile_elements / blockwise_least_block;

  bool bounded;  // no element is beyond blockwise_most, or not finite
  std::uint16_t step_bits[most], low_bits[most];
  T step[most], low[most], inverse[most];  // inverse: 1 / step
};

// The magnitudes and, unless symmetric, the least and greatest elements of sixteen blocks, a row of lanes each.
template <typename T>
struct Extremes {
  Vec<T> magnitudes[lanes], least[lanes], greatest[lanes];
};

// Sets the scales of sixteen blocks from `first` on. Overwrites the extremes.
template <bool symmetric, typename T>
void set_scales(Extremes<T>& blocks, std::size_t first, T levels, Scales<T>& scales) {
  T largest[lanes], lows[lanes] = {}, highs[lanes];
  const Vec<T> of_blocks = reduce_rows(blocks.magnitudes, [](auto a, auto b) { return larger_magnitude(a, b); });
  scales.bounded &= magnitude_at_least(of_blocks, bits_of(blockwise_most<T>)) == 0;
  store(of_blocks, largest, All{});
  std::memcpy(highs, largest, sizeof(highs));
  if constexpr (!symmetric) {
    store(reduce_rows(blocks.least, [](auto a, auto b) { return lesser(a, b); }), lows, All{});
    store(reduce_rows(blocks.greatest, [](auto a, auto b) { return greater(a, b); }), highs, All{});
  }
#pragma omp simd
  for (std::size_t i = 0; i < lanes; ++i) {
    const BlockwiseScale scale = blockwise_scale(lows[i], highs[i], is_finite(largest[i]), levels);
    scales.step_bits[first + i] = scale.step;
    scales.low_bits[first + i] = scale.low;
    scales.step[first + i] = static_cast<T>(bfloat16_value(scale.step));
    scales.low[first + i] = static_cast<T>(bfloat16_value(scale.low));
  }
  store(broadcast(T{1}) / load(scales.step + first, All{}), scales.inverse + first, All{});
}

// A tile that is corrected and measured, block by block, before it is rounded.
template <typename T>
struct Tile {
  // Measures the blocks [first, last), of `size` elements. at(i) returns the sixteen elements from i of the tile. Sets
  // the scales of up to sixteen blocks at once, after the last of them.
  template <bool symmetric, typename At>
  void measure(std::size_t first, std::size_t last, std::size_t size, T levels, At at) {
    for (std::size_t block = first; block < last; ++block) {
      Vec<T> magnitude = broadcast(T{0}), least = broadcast(infinity<T>()), greatest = broadcast(-infinity<T>());
      for (std::size_t i = block * size; i < (block + 1) * size; i += lanes) {
        const Vec<T> here = at(i);
        magnitude = larger_magnitude(magnitude, here);
        if constexpr (symmetric) continue;
        least = lesser(here, least);
        greatest = greater(here, greatest);
      }
      std::size_t row = block % lanes;
      extremes.magnitudes[row] = magnitude;
      extremes.least[row] = least;
      extremes.greatest[row] = greatest;
      if (row + 1 < lanes && block + 1 < blocks) continue;
      while (++row < lanes) extremes.magnitudes[row] = extremes.least[row] = extremes.greatest[row] = broadcast(T{0});
      set_scales<symmetric>(extremes, block / lanes * lanes, levels, scales);
    }
  }

  std::size_t at, size, blocks;
  T *p, *x, *residual;  // the corrected elements; those to round: p, or p rotated; where the losses go
  Scales<T> scales;
  Extremes<T> extremes;
  T buffer[tile_elements], rotated[tile_elements];
};

// How an element is rounded: to the nearest level, or at random to one of two. `inside` is `nearest` without comparing
// places with the levels at the ends, for elements that are between them. `centred` is `inside` with low = 0.
enum class Mode { inside, centred, nearest, stochastic };

// Rounds elements to codes.
template <typename T, Mode mode>
struct Rounding {
  explicit Rounding(const BlockwiseFormat& format)
      : least(static_cast<T>(format.least())),
        most(static_cast<T>(format.most())),
        whole(static_cast<T>(sizeof(T) == 4 ? 0x1.8p23 : 0x1.8p52) + static_cast<T>(format.zero())) {}

  // Rounds the place of an element between the levels, ties to even. The lowest byte of the result is the code.
  // Floats of the size of `whole` have no fraction.
  Vec<T> operator()(const Vec<T>& place) const {
    constexpr bool is_inside = mode == Mode::inside || mode == Mode::centred;
    return (is_inside ? place : lesser(greater(place, broadcast(least)), broadcast(most))) + broadcast(whole);
  }

  const T least, most, whole;
};

// Writes random offsets for 64 elements: uniform between -1/2 and 1/2, from 16 bits each of 16 draws. Element i takes
// bits 16 (i / 16) on of draw i mod 16.
template <typename T>
void draw_offsets(Stream& stream, T* offsets) {
  std::uint64_t draws[blockwise_group_draws];
  for (std::uint64_t& draw : draws) draw = stream();
  for (int part = 0; part < 4; ++part) {
#pragma omp simd
    for (std::size_t i = 0; i < lanes; ++i) {
      offsets[part * lanes + i] = blockwise_offset<T>(draws[i] >> 16 * part & 0xffff);
    }
  }
}

}  // namespace
}  // namespace gluon_gc
