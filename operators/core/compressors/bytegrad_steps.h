// The 255 even steps of bytegrad, and the way to them and back. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/bytegrad_range.h"
#include "core/vec_bytes.h"

namespace gluon_gc {
namespace {

constexpr int step_count = 255;

// Numbers elements by steps, 0 to 255, and back, given a range that has steps. Numbers are above `whole`: those
// floats have no bits after the point, so that adding rounds, and the lowest byte is the number.
//
// Within a range that is very wide or very narrow, all is reckoned in multiples of a power of two, so that
// neither the range nor the steps in it overflow or lose bits.
template <typename T>
struct Steps {
  explicit Steps(const Range<T>& range) : low(broadcast(range.low)), high(broadcast(range.high)) {
    constexpr T far = static_cast<T>(sizeof(T) == 4 ? 0x1p64 : 0x1p512);
    constexpr T zero = static_cast<T>(sizeof(T) == 4 ? 0x1p23 : 0x1p52);
    const T width = range.high - range.low;
    const T factor = width > far ? 1 / far : width < 1 / far ? far : T{1};
    const T scaled_low = range.low * factor, scaled_width = range.high * factor - scaled_low;
    extreme = factor != 1;
    unit = broadcast(factor);
    inverse_unit = broadcast(1 / factor);
    low_in_units = broadcast(scaled_low);
    steps_per_unit = broadcast(step_count / scaled_width);
    step = broadcast(scaled_width / step_count);
    whole = broadcast(zero);
    first_upper = broadcast(zero + (step_count + 1) / 2);
    last = broadcast(zero + step_count);
  }

  // The number of the step nearest to p, ties to even.
  Vec<T> nearest(const Vec<T>& p) const {
    return ((extreme ? p * unit : p) - low_in_units) * steps_per_unit + whole;
  }

  // What a number stands for: so many steps from the nearer end, which is thus exact.
  Vec<T> operator()(const Vec<T>& number) const {
    const std::uint32_t lower = less(number, first_upper);
    const Vec<T> from_end = (number - choose(lower, whole, last)) * step;
    return choose(lower, low, high) + (extreme ? from_end * inverse_unit : from_end);
  }

  const Vec<T> low, high;
  bool extreme;
  Vec<T> unit, inverse_unit, low_in_units, steps_per_unit, step, whole, first_upper, last;
};

}  // namespace
}  // namespace gluon_gc
