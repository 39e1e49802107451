// float16 in integer arithmetic, without branches. For kernel sources only (see isa.h).
#pragma once

#include <cstdint>
#include <cstring>

namespace gluon_gc {
namespace {

inline std::uint32_t float_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float bits_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// The bits of the float16 nearest to x, ties to even.
inline std::uint16_t half_bits(float x) {
  const std::uint32_t sign = float_bits(x) >> 16 & 0x8000;
  const std::uint32_t magnitude = float_bits(x) & 0x7fffffff;
  // A sum with 0.5 leaves the 2^-24 steps of a subnormal half in the low bits, rounded by the adder.
  const std::uint32_t subnormal = float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f);
  const std::uint32_t even = magnitude >> 13 & 1;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfff + even) >> 13;
  const std::uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
  const std::uint32_t finite = magnitude < 113u << 23 ? subnormal : normal;
  const std::uint32_t large = magnitude > 0x7f800000 ? nan : 0x7c00;
  return static_cast<std::uint16_t>(sign | (magnitude < 143u << 23 ? finite : large));
}

// The float with the value of a float16.
inline float half_value(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half} << 16 & 0x80000000;
  const std::uint32_t magnitude = (std::uint32_t{half} & 0x7fff) << 13;
  const std::uint32_t subnormal = float_bits(bits_float(magnitude + (113u << 23)) - bits_float(113u << 23));
  const std::uint32_t normal = magnitude + (112u << 23);
  const std::uint32_t infinite = magnitude + (224u << 23);
  const std::uint32_t special = magnitude == 0x0f800000 ? infinite : infinite | 0x400000;  // NaN: quiet
  const std::uint32_t finite = magnitude < 1u << 23 ? subnormal : normal;
  return bits_float(sign | (magnitude < 0x0f800000 ? finite : special));
}

}  // namespace
}  // namespace gluon_gc
