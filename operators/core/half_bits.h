// Conversion to and from float16 in integer arithmetic, without branches, so that loops vectorise. For kernel sources
// only (see isa.h), of host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

// The bits of the float16 nearest to x, ties to even.
GLUON_GC_HOST_DEVICE uint16 half_bits(float x) {
  const uint32 sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
  // Adding 0.5 leaves the number of 2^-24 steps of a subnormal half in the low bits; the addition rounds it.
  const uint32 subnormal = bits_of(from_bits(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32 normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32 nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
  const uint32 finite = magnitude < 113u << 23 ? subnormal : normal;
  const uint32 large = magnitude > 0x7f800000 ? nan : 0x7c00;
  return static_cast<uint16>(sign | (magnitude < 143u << 23 ? finite : large));
}

// The same for a double x, given x rounded to the float `nearest`. Rounding twice could go wrong. So x is first rounded
// to odd: truncated to a float, with the last bit set if it is not exact. That float rounds to the same half as x.
GLUON_GC_HOST_DEVICE uint16 half_bits(double x, float nearest) {
  if (!(static_cast<double>(nearest) != x)) return half_bits(nearest);
  const bool away = absolute(static_cast<double>(nearest)) > absolute(x);
  return half_bits(from_bits((bits_of(nearest) - away) | 1));
}

// The same, but a finite x beyond the largest float16 becomes the largest one. So x minus the float16 is finite too. A
// NaN becomes one that does not depend on x, because a GPU's casts change the bits of a NaN.
template <typename T>
GLUON_GC_HOST_DEVICE uint16 finite_half_bits(T x) {
  if (!(x == x)) return half_bits(not_a_number<float>());
  constexpr T most = 65504;  // the largest float16
  const bool beyond = absolute(x) > most && is_finite(x);
  const T bounded = beyond ? (x < 0 ? -most : most) : x;
  return half_bits(static_cast<double>(bounded), static_cast<float>(bounded));
}

// The float with the value of a float16.
GLUON_GC_HOST_DEVICE float half_value(uint16 half) {
  const uint32 sign = uint32{half} << 16 & 0x80000000, magnitude = (uint32{half} & 0x7fff) << 13;
  const uint32 subnormal = bits_of(from_bits(magnitude + (113u << 23)) - from_bits(113u << 23));
  const uint32 normal = magnitude + (112u << 23);
  const uint32 infinite = magnitude + (224u << 23);
  const uint32 special = magnitude == 0x0f800000 ? infinite : infinite | 0x400000;  // NaN: quiet
  const uint32 finite = magnitude < 1u << 23 ? subnormal : normal;
  return from_bits(sign | (magnitude < 0x0f800000 ? finite : special));
}

GLUON_GC_HOST_DEVICE bool half_is_finite(uint16 half) { return (half & 0x7c00) != 0x7c00; }

}  // namespace
}  // namespace gluon_gc
