// float16, and casts and products that treat NaNs as x86 does: a NaN becomes quiet, and keeps its sign and as much of
// its payload as fits. A GPU's own casts lose both.
#pragma once

#include "core/half_bits.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Half {
  uint16 bits;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline double to_double(double x) { return x; }

__device__ inline float to_float(double x) {
  if (x == x) return static_cast<float>(x);
  const uint64 bits = bits_of(x);
  return from_bits(static_cast<uint32>(bits >> 63) << 31 | nan_bits<float> | static_cast<uint32>(bits >> 29 & 0x3fffff));
}

__device__ inline double to_double(float x) {
  if (x == x) return static_cast<double>(x);
  const uint64 bits = bits_of(x);
  return from_bits(bits >> 31 << 63 | nan_bits<double> | (bits & 0x3fffff) << 29);
}

__device__ inline float to_float(Half x) { return half_value(x.bits); }
__device__ inline double to_double(Half x) { return to_double(to_float(x)); }
__device__ inline Half to_half(float x) { return {half_bits(x)}; }
__device__ inline Half to_half(double x) { return {half_bits(x, to_float(x))}; }

template <typename To, typename From>
__device__ inline To cast(From x) {
  if constexpr (sizeof(To) == sizeof(Half)) {
    return to_half(x);
  } else if constexpr (sizeof(To) == sizeof(float)) {
    return to_float(x);
  } else {
    return to_double(x);
  }
}

// x * factor. If an operand is a NaN, the product is that NaN, made quiet; x comes first. Other NaNs are negative.
__device__ inline float product(float x, float factor) {
  const float made = x * factor;
  if (made == made) return made;
  return from_bits(x != x ? bits_of(x) | 0x400000 : factor != factor ? bits_of(factor) | 0x400000 : 0xffc00000);
}

__device__ inline double product(double x, double factor) {
  constexpr uint64 quiet = 0x8000000000000;
  const double made = x * factor;
  if (made == made) return made;
  return from_bits(x != x ? bits_of(x) | quiet : factor != factor ? bits_of(factor) | quiet : uint64{0xfff8000000000000});
}

__device__ inline bool is_finite(Half x) { return half_is_finite(x.bits); }
__device__ inline bool is_finite(float x) { return gluon_gc::is_finite(x); }
__device__ inline bool is_finite(double x) { return gluon_gc::is_finite(x); }

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
