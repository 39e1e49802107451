// float16 as core/half_bits.h has it, in integers.
#pragma once

#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {
namespace {

using uint16 = unsigned short;

__device__ inline uint32 float_bits(float x) { return static_cast<uint32>(__float_as_int(x)); }
__device__ inline float bits_float(uint32 bits) { return __int_as_float(static_cast<int>(bits)); }

// The bits of the float16 nearest to x, ties to even, rounded once.
__device__ inline uint16 half_of(float x) {
  const uint32 sign = float_bits(x) >> 16 & 0x8000, magnitude = float_bits(x) & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 143u << 23) return static_cast<uint16>(sign | 0x7c00);
  if (magnitude < 113u << 23) {  // the adder rounds to steps of 2^-24, those of subnormal halves
    return static_cast<uint16>(sign | (float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f)));
  }
  return static_cast<uint16>(sign | (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

__device__ inline uint16 half_of(double x) {
  // A float whose last bit is set wherever it is not exact rounds to the same half as x.
  const float nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x) return half_of(nearest);
  const bool away = fabs(static_cast<double>(nearest)) > fabs(x);
  return half_of(bits_float((float_bits(nearest) - away) | 1));
}

// The float with the value of a float16.
__device__ inline float half_value(uint16 half) {
  const uint32 sign = static_cast<uint32>(half & 0x8000) << 16, magnitude = static_cast<uint32>(half & 0x7fff) << 13;
  if (magnitude < 1u << 23) {  // subnormal
    return bits_float(sign | float_bits(bits_float(magnitude + (113u << 23)) - bits_float(113u << 23)));
  }
  if (magnitude < 0x0f800000) return bits_float(sign | (magnitude + (112u << 23)));
  const uint32 infinite = magnitude + (224u << 23);
  return bits_float(sign | (magnitude == 0x0f800000 ? infinite : infinite | 0x400000));  // a NaN is quiet
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
