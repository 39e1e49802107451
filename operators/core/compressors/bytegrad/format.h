// The payload of bytegrad (see bytegrad.cpp) and its 255 even steps. For kernel sources only (see isa.h), of host and
// device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

constexpr int step_count = 255;

// The least and the largest element. Both are NaN if an element is NaN or infinite.
template <typename T>
struct Range {
  // Whether the payload has a byte for each element. It has none if all elements are equal, or if one is not finite.
  GLUON_GC_HOST_DEVICE bool has_steps() const { return low < high; }

  T low, high;
};

constexpr Size range_at = sizeof(uint32);
template <typename T>
constexpr Size bytegrad_header_bytes = range_at + 2 * sizeof(T);

// The length in bytes of a payload of n elements.
template <typename T>
GLUON_GC_HOST_DEVICE uint32 bytegrad_payload_bytes(const Range<T>& range, Size n) {
  return static_cast<uint32>(bytegrad_header_bytes<T> + (range.has_steps() ? n : 0));
}

// Constants for quantization, for a range that has steps:
//
//   number = (p * unit - low_in_units) * steps_per_unit + whole,  q = lowest byte of the bits of number
//
// `unit` is 1, or a power of two for a very wide or very narrow range, so that nothing overflows or loses bits. `whole`
// is so large that floats of its size have no fraction. So adding it rounds to a whole number, ties to even.
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
  // q >= first_upper decodes from the upper end, hi - (255 - q) step, so that both lo and hi are exact.
  static constexpr T first_upper = (step_count + 1) / 2;

  T unit, inverse_unit, low_in_units, steps_per_unit, step;
};

}  // namespace
}  // namespace gluon_gc
