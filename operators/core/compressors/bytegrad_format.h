// The payload of bytegrad, which bytegrad.cpp describes, and its 255 even steps. For kernel sources only (see isa.h), of
// host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

constexpr int step_count = 255;

// The least and the largest of all elements; NaNs if one of them is not finite.
template <typename T>
struct Range {
  // Whether there are elements that differ, which takes a byte each to say.
  GLUON_GC_HOST_DEVICE bool has_steps() const { return low < high; }

  T low, high;
};

constexpr Size range_at = sizeof(uint32);
template <typename T>
constexpr Size bytegrad_header_bytes = range_at + 2 * sizeof(T);

// The length of a payload of n elements.
template <typename T>
GLUON_GC_HOST_DEVICE uint32 bytegrad_payload_bytes(const Range<T>& range, Size n) {
  return static_cast<uint32>(bytegrad_header_bytes<T> + (range.has_steps() ? n : 0));
}

// The way from elements to the numbers of steps, and back, for a range that has steps.
//
// All is reckoned in multiples of a unit: in a range that is very wide or very narrow a power of two, so that neither
// the range nor the steps in it overflow or lose bits. Numbers are added to `whole`: floats of this size have no bits
// after the point, so that adding rounds, ties to even, and the lowest byte is the number.
template <typename T>
struct StepSizes {
  GLUON_GC_HOST_DEVICE explicit StepSizes(const Range<T>& range) {
    constexpr T far = static_cast<T>(sizeof(T) == 4 ? 0x1p64 : 0x1p512);
    const T width = range.high - range.low;
    unit = width > far ? 1 / far : width < 1 / far ? far : T{1};
    inverse_unit = 1 / unit;
    low_in_units = range.low * unit;
    const T width_in_units = range.high * unit - low_in_units;
    steps_per_unit = step_count / width_in_units;
    step = width_in_units / step_count;
  }

  static constexpr T whole = static_cast<T>(sizeof(T) == 4 ? 0x1p23 : 0x1p52);
  // Steps from this number on are counted from the upper end, so that both ends are exact.
  static constexpr T first_upper = (step_count + 1) / 2;

  T unit, inverse_unit, low_in_units, steps_per_unit, step;
};

}  // namespace
}  // namespace gluon_gc
