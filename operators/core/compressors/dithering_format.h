// The payload of dithering, which dithering.cpp describes, its levels, and how an element is rounded to one. For kernel
// sources only (see isa.h), of host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {

struct DitheringConfig {
  uint32 levels;
  int planes;        // of a payload: the signs, and the bits of the symbols
  bool natural;
  bool l2;
  bool fixed_width;  // never Elias coding, even if that is smaller
};

namespace {

constexpr int plane_count(uint32 levels) {
  int planes = 1;
  for (; levels != 0; levels >>= 1) ++planes;
  return planes;
}

constexpr Size plane_group = 16;  // elements that have a bit each in a plane
constexpr Size norm_at = 2 * sizeof(uint32);
template <typename T>
constexpr Size dithering_header_bytes = norm_at + sizeof(T);

// The bytes of the planes of some groups.
constexpr Size planes_bytes(Size groups, Size planes) { return groups * planes * sizeof(uint16); }

// Where the planes of a group are.
template <typename T>
constexpr Size planes_at(Size group, Size planes) {
  return dithering_header_bytes<T> + planes_bytes(group, planes);
}

constexpr Size plane_groups(Size n) { return n / plane_group + (n % plane_group != 0); }

// The length of a payload in fixed width, which no payload exceeds; a multiple of 4.
template <typename T>
constexpr Size dithering_capacity(Size n, Size planes) {
  return (planes_at<T>(plane_groups(n), planes) + 3) / 4 * 4;
}

// What a symbol decodes to: a share of the norm, so that nothing overflows and the largest is the norm itself.
template <typename T>
GLUON_GC_HOST_DEVICE T level_of(uint32 symbol, T norm, const DitheringConfig& config) {
  if (symbol == 0) return 0;
  const int below_top = static_cast<int>(symbol) - static_cast<int>(config.levels);
  const T share =
      config.natural ? power_of_two<T>(below_top) : static_cast<T>(symbol) / static_cast<T>(config.levels);
  return share * norm;
}

// The fractional bits of an element's position between two symbols.
constexpr int fraction_bits_of(const DitheringConfig& config) { return 32 - config.planes; }

// The scale that takes magnitudes, in multiples of a unit, to places from 0 to `top`. The unit keeps the scale normal
// if the norm is extreme.
template <typename T>
struct PlaceScale {
  GLUON_GC_HOST_DEVICE PlaceScale(T norm, const DitheringConfig& config) {
    constexpr int far = sizeof(T) == 4 ? 64 : 512;
    top = config.natural ? power_of_two<T>(static_cast<int>(config.levels) - 1)
                         : static_cast<T>(config.levels) * power_of_two<T>(fraction_bits_of(config));
    unit = norm < power_of_two<T>(-far) ? power_of_two<T>(far)
           : norm > power_of_two<T>(far) ? power_of_two<T>(-far) : T{1};
    scale = norm > 0 && is_finite(norm) ? top / (norm * unit) : T{0};
  }

  T top, unit, scale;
};

// The symbol of an element at y, where all bits of the draw decide.
template <typename T>
GLUON_GC_HOST_DEVICE int exact_symbol(T y, uint64 draw, bool natural, int fraction_bits) {
  int whole = 0;
  T probability = y;
  if (!natural) {
    whole = static_cast<int>(y) >> fraction_bits;
    probability = y * power_of_two<T>(-fraction_bits) - static_cast<T>(whole);
  } else if (y >= 1) {
    const Bits<T> above = bits_of(y) - bits_of_one<T>;
    const Bits<T> mantissa = above & ((Bits<T>{1} << mantissa_bits<T>) - 1);
    whole = 1 + static_cast<int>(above >> mantissa_bits<T>);
    probability = static_cast<T>(mantissa) * power_of_two<T>(-mantissa_bits<T>);
  }
  const T bound = probability * power_of_two<T>(64);  // below 2^64
  const auto floor = static_cast<uint64>(bound);
  return whole + (draw < floor || (draw == floor && static_cast<T>(floor) < bound));
}

}  // namespace
}  // namespace gluon_gc
