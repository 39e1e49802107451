// float16, and casts that make of a NaN what they do on x86, where it becomes quiet, and keeps its sign and what there is
// room for of the rest. A GPU's own casts forget both.
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

// x * factor. A NaN of either becomes quiet; one that is new has a sign.
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
