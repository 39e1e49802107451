// The payload of dithering (see dithering.cpp), its levels, and the rounding of one element. For kernel sources only
// (see isa.h), of host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {

struct DitheringConfig {
  uint32 levels;
  int planes;        // bit planes of a payload: the signs and the bits of the symbols
  bool natural;      // else linear
  bool l2;           // norm: l2, else max |p|
  bool fixed_width;  // no Elias coding, even if it is smaller
};

namespace {

constexpr int plane_count(uint32 levels) {
  int planes = 1;
  for (; levels != 0; levels >>= 1) ++planes;
  return planes;
}

constexpr Size plane_group = 16;  // elements in a group, one bit each in a plane
constexpr Size norm_at = 2 * sizeof(uint32);
template <typename T>
constexpr Size dithering_header_bytes = norm_at + sizeof(T);

// The size in bytes of the bit planes of `groups` groups.
constexpr Size planes_bytes(Size groups, Size planes) { return groups * planes * sizeof(uint16); }

// The offset of the bit planes of a group in a payload.
template <typename T>
constexpr Size planes_at(Size group, Size planes) {
  return dithering_header_bytes<T> + planes_bytes(group, planes);
}

constexpr Size plane_groups(Size n) { return n / plane_group + (n % plane_group != 0); }

// The length of a payload in fixed width, a multiple of 4. No payload is longer.
template <typename T>
constexpr Size dithering_capacity(Size n, Size planes) {
  return (planes_at<T>(plane_groups(n), planes) + 3) / 4 * 4;
}

// The level that a symbol decodes to. It is a share of the norm, so it cannot overflow, and the highest level is the
// norm itself.
template <typename T>
GLUON_GC_HOST_DEVICE T level_of(uint32 symbol, T norm, const DitheringConfig& config) {
  if (symbol == 0) return 0;
  const int below_top = static_cast<int>(symbol) - static_cast<int>(config.levels);
  const T share =
      config.natural ? power_of_two<T>(below_top) : static_cast<T>(symbol) / static_cast<T>(config.levels);
  return share * norm;
}

// The number of fractional bits in the position of an element between two symbols (Quantiser).
constexpr int fraction_bits_of(const DitheringConfig& config) { return 32 - config.planes; }

// y = |x| * unit * scale, from 0 to `top`. For linear, y is in units of 2^-fraction_bits. `unit` is 1, or a power of
// two that keeps `scale` a normal number if the norm is very large or very small.
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

// The symbol of an element with this y (PlaceScale), from all 64 bits of the draw.
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
