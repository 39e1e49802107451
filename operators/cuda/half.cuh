// float16 by integer operations, and casts that make of a NaN what they do on the CPU: core/half_bits.h, and x86, where
// it becomes quiet, and keeps its sign and what there is room for of the rest. A GPU's own casts forget both.
#pragma once

#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Half {
  unsigned short bits;
};

__device__ inline uint32 bits_of(float x) { return static_cast<uint32>(__float_as_int(x)); }
__device__ inline uint64 bits_of(double x) { return static_cast<uint64>(__double_as_longlong(x)); }
__device__ inline float float_of(uint32 bits) { return __int_as_float(static_cast<int>(bits)); }
__device__ inline double double_of(uint64 bits) { return __longlong_as_double(static_cast<long long>(bits)); }

__device__ inline float to_float(float x) { return x; }
__device__ inline double to_double(double x) { return x; }

__device__ inline float to_float(double x) {
  if (x == x) return static_cast<float>(x);
  const uint64 bits = bits_of(x);
  return float_of(static_cast<uint32>(bits >> 63) << 31 | 0x7fc00000 | static_cast<uint32>(bits >> 29 & 0x3fffff));
}

__device__ inline double to_double(float x) {
  if (x == x) return static_cast<double>(x);
  const uint64 bits = bits_of(x);
  return double_of(bits >> 31 << 63 | 0x7ff8000000000000 | (bits & 0x3fffff) << 29);
}

// As half_value of core/half_bits.h.
__device__ inline float to_float(Half x) {
  const uint32 sign = (x.bits & 0x8000u) << 16, magnitude = (x.bits & 0x7fffu) << 13;
  const uint32 subnormal = bits_of(float_of(magnitude + (113u << 23)) - float_of(113u << 23));
  const uint32 infinite = magnitude + (224u << 23);
  const uint32 special = magnitude == 0x0f800000 ? infinite : infinite | 0x400000;
  const uint32 finite = magnitude < 1u << 23 ? subnormal : magnitude + (112u << 23);
  return float_of(sign | (magnitude < 0x0f800000 ? finite : special));
}

__device__ inline double to_double(Half x) { return to_double(to_float(x)); }

// As half_bits of core/half_bits.h: to nearest, ties to even.
__device__ inline Half to_half(float x) {
  const uint32 sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
  const uint32 subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32 normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32 finite = magnitude < 113u << 23 ? subnormal : normal;
  const uint32 large = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : 0x7c00;
  return {static_cast<unsigned short>(sign | (magnitude < 143u << 23 ? finite : large))};
}

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
  return float_of(x != x ? bits_of(x) | 0x400000 : factor != factor ? bits_of(factor) | 0x400000 : 0xffc00000);
}

__device__ inline double product(double x, double factor) {
  constexpr uint64 quiet = 0x8000000000000;
  const double made = x * factor;
  if (made == made) return made;
  return double_of(x != x ? bits_of(x) | quiet : factor != factor ? bits_of(factor) | quiet : 0xfff8000000000000);
}

__device__ inline bool is_finite(Half x) { return (x.bits & 0x7c00) != 0x7c00; }
template <typename T>
__device__ inline bool is_finite(T x) {
  return x - x == 0;
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
