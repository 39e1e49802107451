// The rounding of blockwise: of the elements of a block to codes, and back. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/blockwise_format.h"
#include "core/generator.h"
#include "core/vec_bytes.h"
#include "core/vec_swap.h"

namespace gluon_gc {
namespace {

// The parameters of a block, from its `count` elements, a multiple of 16.
template <bool symmetric, typename T>
BlockwiseScale scale_of(const T* x, std::size_t count, int levels) {
  Vec<T> magnitude = broadcast(T{0}), least = load(x, All{}), greatest = least;
  for (std::size_t i = 0; i < count; i += lanes) {
    const Vec<T> here = load(x + i, All{});
    magnitude = larger_magnitude(magnitude, here);
    if constexpr (!symmetric) {
      least = lesser(here, least);
      greatest = greater(here, greatest);
    }
  }
  const double largest = reduce(magnitude, [](const Vec<T>& a, const Vec<T>& b) { return larger_magnitude(a, b); });
  if (symmetric || !is_finite(largest)) return blockwise_scale(0, largest, levels);
  return blockwise_scale(reduce(least, [](const Vec<T>& a, const Vec<T>& b) { return lesser(a, b); }),
                         reduce(greatest, [](const Vec<T>& a, const Vec<T>& b) { return greater(a, b); }), levels);
}

// Rounds the elements of a block.
template <typename T>
struct Rounding {
  Rounding(const BlockwiseFormat& format, const BlockwiseScale& scale)
      : step(broadcast(static_cast<T>(bfloat16_value(scale.step)))),
        inverse(broadcast(1 / static_cast<T>(bfloat16_value(scale.step)))),
        low(broadcast(static_cast<T>(bfloat16_value(scale.low)))),
        least(broadcast(static_cast<T>(format.least()))),
        most(broadcast(static_cast<T>(format.most()))),
        zero(broadcast(static_cast<T>(format.zero()))),
        whole(broadcast(static_cast<T>(sizeof(T) == 4 ? 0x1.8p23 : 0x1.8p52) + static_cast<T>(format.zero()))) {}

  // The place of x between the levels, before rounding.
  Vec<T> place(const Vec<T>& x) const { return (x - low) * inverse; }

  // Rounds to a code, ties to even. The code is the lowest byte. Floats of the size of `whole` have no fraction.
  Vec<T> rounded(const Vec<T>& place) const { return lesser(greater(place, least), most) + whole; }

  // The decoded value of a rounded place, or of a code.
  Vec<T> value(const Vec<T>& rounded) const { return (rounded - whole) * step + low; }
  Vec<T> value_of_code(const Vec<std::uint8_t>& code) const { return (widen<T>(code) - zero) * step + low; }

  const Vec<T> step, inverse, low, least, most, zero, whole;
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
      const auto number = static_cast<std::int32_t>(draws[i] >> 16 * part & 0xffff);
      offsets[part * lanes + i] = static_cast<T>(number) * T{0x1p-16f} + T{0x1p-17f - 0.5f};
    }
  }
}

}  // namespace
}  // namespace gluon_gc
