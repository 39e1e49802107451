// The payload of blockwise (see blockwise.cpp) and the parameters of a block. For kernel sources only (see isa.h), of
// host and device.
//
// Payload, little-endian; `low` is absent if the option `symmetric` is on:
//   [codes: `bits` bits each] [step of each block: bfloat16] [low of each block: bfloat16]
//
// Codes are packed in groups of 128. The last group is filled up with zeros. A group is one part for each bit that is
// set in the number `bits`, the highest first: 3 bits are a part of 2 bits and one of 1 bit. A part of w bits has 16 w
// bytes. It has the lowest w bits of each code that no earlier part has. Its byte i has the bits of elements
// i + 16 w k, k = 0, 1, ..., 8 / w - 1, from the lowest bit on. So with 4 bits, byte i has elements i and i + 64.
#pragma once

#include "core/generator.h"
#include "core/host_device.h"

namespace gluon_gc {
namespace {

constexpr Size blockwise_least_block = 64, blockwise_most_block = 2048;
constexpr Size blockwise_group = 128;       // elements whose codes are packed together
constexpr Size blockwise_group_draws = 16;  // draws for 64 elements

// The elements that are processed together: whole blocks, and whole groups of codes.
constexpr Size blockwise_tile = blockwise_most_block;

// The random stream of the signs: bit i mod 64 of draw i / 64 is set if the sign of element i of each block changes.
GLUON_GC_HOST_DEVICE Stream blockwise_signs() { return {{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9}}; }
constexpr Size blockwise_sign_draws = blockwise_most_block / 64;

// The random offset of stochastic rounding, from 16 random bits.
template <typename T>
GLUON_GC_HOST_DEVICE T blockwise_offset(uint32 bits) {
  return static_cast<T>(static_cast<int>(bits)) * T{0x1p-16f} + T{0x1p-17f - 0.5f};
}

// The layout of a payload.
struct BlockwiseFormat {
  GLUON_GC_HOST_DEVICE Size blocks() const { return n / block + (n % block != 0); }

  // The number of elements that have a code. A rotated block has them all, even if it is the last one and shorter.
  GLUON_GC_HOST_DEVICE Size codes() const { return hadamard ? blocks() * block : n; }
  GLUON_GC_HOST_DEVICE Size groups() const { return codes() / blockwise_group + (codes() % blockwise_group != 0); }
  GLUON_GC_HOST_DEVICE Size group_bytes() const { return blockwise_group / 8 * bits; }

  // Offsets in a payload.
  GLUON_GC_HOST_DEVICE Size steps_at() const { return groups() * group_bytes(); }
  GLUON_GC_HOST_DEVICE Size lows_at() const { return steps_at() + blocks() * sizeof(uint16); }
  GLUON_GC_HOST_DEVICE Size payload_bytes() const { return steps_at() + numbers() * sizeof(uint16); }

  // How many bfloat16 numbers a payload has.
  GLUON_GC_HOST_DEVICE Size numbers() const { return blocks() * (symmetric ? 1 : 2); }

  GLUON_GC_HOST_DEVICE Size draws() const {
    return stochastic ? (codes() + 63) / 64 * blockwise_group_draws : 0;
  }

  // A code is q + zero(), for a whole number q from least() to most().
  GLUON_GC_HOST_DEVICE int zero() const { return symmetric ? 1 << (bits - 1) : 0; }
  GLUON_GC_HOST_DEVICE int least() const { return symmetric ? -most() : 0; }
  GLUON_GC_HOST_DEVICE int most() const { return (symmetric ? 1 << (bits - 1) : 1 << bits) - 1; }

  Size n, block;
  int bits;
  bool symmetric, hadamard, stochastic;
};

constexpr uint16 bfloat16_nan = nan_bits<float> >> 16;

// The value of a bfloat16: the upper half of a float.
GLUON_GC_HOST_DEVICE float bfloat16_value(uint16 bits) { return from_bits(uint32{bits} << 16); }

// The largest bfloat16 that is at most x, for |x| < 2^127.
template <typename T>
GLUON_GC_HOST_DEVICE uint16 bfloat16_below(T x) {
  const float near = static_cast<float>(x);
  const uint32 toward_minus_infinity = x < 0 ? 1 : -1;
  const uint32 below = bits_of(near) + (static_cast<T>(near) > x ? toward_minus_infinity : 0);
  return static_cast<uint16>((x < 0 ? below + 0xffff : below) >> 16);
}

// The least bfloat16 that is at least the float nearest to x, for 0 < x < 2^127.
template <typename T>
GLUON_GC_HOST_DEVICE uint16 bfloat16_above(T x) {
  return static_cast<uint16>((bits_of(static_cast<float>(x)) + 0xffff) >> 16);
}

// The parameters of a block: code 0 decodes to low - zero() * step.
struct BlockwiseScale {
  uint16 step, low;
};

// Elements beyond this magnitude are sent as if they had it. Then no sum of a block overflows.
template <typename T>
constexpr T blockwise_most = static_cast<T>(0x1p88);
// The least step. 1 / step must not overflow.
template <typename T>
constexpr T blockwise_least_step = static_cast<T>(0x1p-100);

template <typename T>
GLUON_GC_HOST_DEVICE T blockwise_bounded(T x) {
  const T bounded = x < blockwise_most<T> ? x : blockwise_most<T>;
  return bounded > -blockwise_most<T> ? bounded : -blockwise_most<T>;
}

// The parameters of a block with elements from `least` to `greatest`; symmetric: with magnitudes up to `greatest`, and
// least = 0. No element is NaN or infinite, unless `finite` is false. Without branches, so that loops vectorise.
template <typename T>
GLUON_GC_HOST_DEVICE BlockwiseScale blockwise_scale(T least, T greatest, bool finite, T levels) {
  const uint16 low = bfloat16_below(blockwise_bounded(least) + T{0});  // turns -0.0 into 0.0
  const T step = (blockwise_bounded(greatest) - static_cast<T>(bfloat16_value(low))) / levels;
  const uint16 above = bfloat16_above(step > blockwise_least_step<T> ? step : blockwise_least_step<T>);
  return {finite ? above : bfloat16_nan, finite ? low : uint16{0}};
}

// Whether a step or low is a number that the compressor writes; not NaN, for example.
GLUON_GC_HOST_DEVICE bool blockwise_number_is_finite(uint16 bits) {
  constexpr uint16 above_all = 0x6f80;  // 2^96
  return (bits & 0x7fff) < above_all;
}

}  // namespace
}  // namespace gluon_gc
