// The payload of blockwise (see blockwise.cpp) and the parameters of a block. For kernel sources only (see isa.h), of
// host and device.
//
// Payload, little-endian; `low` is absent if the option `symmetric` is on:
//   [codes: `bits` bits each] [step of each block: bfloat16] [low of each block: bfloat16]
//
// Codes are packed in groups of 128. The last group is filled up with zeros. A group is one part for each bit that is
// set in the number `bits`, the highest first: 3 bits are a part of 2 bits and one of 1 bit. A part of w bits has 16 w
// bytes. It has the lowest w bits of each code that no earlier part has. Its byte i has the bits of elements i + 16 w k,
// k = 0, 1, ..., 8 / w - 1, from the lowest bit on. So with 4 bits, byte i has elements i and i + 64.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

constexpr Size blockwise_least_block = 64, blockwise_most_block = 2048;
constexpr Size blockwise_group = 128;       // elements whose codes are packed together
constexpr Size blockwise_group_draws = 16;  // draws for 64 elements

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

// The value of a bfloat16: the upper half of a float.
GLUON_GC_HOST_DEVICE float bfloat16_value(uint16 bits) { return from_bits(uint32{bits} << 16); }

// The largest bfloat16 that is at most x, for |x| < 2^127.
GLUON_GC_HOST_DEVICE uint16 bfloat16_below(double x) {
  const uint16 near = static_cast<uint16>(bits_of(static_cast<float>(x)) >> 16);
  if (!(bfloat16_value(near) > x)) return near;
  return static_cast<uint16>(x < 0 ? near + 1 : near - 1);
}

// The parameters of a block: code 0 decodes to low - zero() * step.
struct BlockwiseScale {
  uint16 step, low;
};

// Elements beyond this magnitude are sent as if they had it. Then no sum of a block overflows.
constexpr double blockwise_most = 0x1p88;
// The least step. 1 / step must not overflow.
constexpr double blockwise_least_step = 0x1p-100;

GLUON_GC_HOST_DEVICE double blockwise_bounded(double x) {
  return x > blockwise_most ? blockwise_most : x < -blockwise_most ? -blockwise_most : x;
}

// The parameters of a block with elements from `least` to `greatest`; symmetric: with magnitudes up to `greatest`, and
// least = 0. `greatest` is NaN or infinite if an element is.
GLUON_GC_HOST_DEVICE BlockwiseScale blockwise_scale(double least, double greatest, int levels) {
  if (!is_finite(greatest)) return {static_cast<uint16>(nan_bits<float> >> 16), 0};
  const uint16 low = bfloat16_below(blockwise_bounded(least) + 0.0);  // turns -0.0 into 0.0
  const double step = (blockwise_bounded(greatest) - bfloat16_value(low)) / levels;
  const double bounded = step > blockwise_least_step ? step : blockwise_least_step;
  return {static_cast<uint16>(bfloat16_below(-bounded) ^ 0x8000), low};
}

// Whether a step or low is a number that the compressor writes; not NaN, for example.
GLUON_GC_HOST_DEVICE bool blockwise_number_is_finite(uint16 bits) {
  constexpr uint16 above_all = 0x6f80;  // 2^96
  return (bits & 0x7fff) < above_all;
}

}  // namespace
}  // namespace gluon_gc
