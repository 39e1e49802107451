// The quantization of bytegrad, for sixteen elements at a time. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/bytegrad/range.h"
#include "core/vec_bytes.h"

namespace gluon_gc {
namespace {

// Converts elements to step numbers, to which StepSizes::whole is added, and back.
template <typename T>
struct Steps {
  explicit Steps(const Range<T>& range) : low(broadcast(range.low)), high(broadcast(range.high)) {
    const StepSizes<T> sizes(range);
    extreme = sizes.unit != 1;
    unit = broadcast(sizes.unit);
    inverse_unit = broadcast(sizes.inverse_unit);
    low_in_units = broadcast(sizes.low_in_units);
    steps_per_unit = broadcast(sizes.steps_per_unit);
    step = broadcast(sizes.step);
    whole = broadcast(sizes.whole);
    first_upper = broadcast(sizes.whole + sizes.first_upper);
    last = broadcast(sizes.whole + step_count);
  }

  // The number of the nearest step, ties to even.
  Vec<T> nearest(const Vec<T>& p) const {
    return ((extreme ? p * unit : p) - low_in_units) * steps_per_unit + whole;
  }

  // The decoded value of a number. It is computed from the nearer end of the range, so that both ends are exact.
  Vec<T> operator()(const Vec<T>& number) const {
    const Vec<T> from_end = (number - choose_less(number, first_upper, whole, last)) * step;
    return choose_less(number, first_upper, low, high) + (extreme ? from_end * inverse_unit : from_end);
  }

  const Vec<T> low, high;
  bool extreme;
  Vec<T> unit, inverse_unit, low_in_units, steps_per_unit, step, whole, first_upper, last;
};

}  // namespace
}  // namespace gluon_gc
