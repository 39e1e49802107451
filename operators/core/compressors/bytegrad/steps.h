// The quantization of bytegrad, for sixteen elements at a time. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/bytegrad/range.h"
#include "core/vec_bytes.h"

namespace gluon_gc {
namespace {

// Converts elements to step numbers, to which StepSizes::whole is added, and back.
template <typename T>
struct Steps {
  explicit Steps(const Range<T>& range) : range(range), sizes(range), extreme(sizes.unit != 1) {}

  // The number of the nearest step, ties to even.
  Vec<T> nearest(const Vec<T>& p) const {
    const Vec<T> in_units = extreme ? p * broadcast(sizes.unit) : p;
    return (in_units - broadcast(sizes.low_in_units)) * broadcast(sizes.steps_per_unit) + broadcast(whole);
  }

  // The decoded value of a number. It is computed from the nearer end of the range, so that both ends are exact.
  Vec<T> operator()(const Vec<T>& number) const {
    const Vec<T> upper = broadcast(whole + StepSizes<T>::first_upper), last = broadcast(whole + step_count);
    const Vec<T> from_end = (number - choose_less(number, upper, broadcast(whole), last)) * broadcast(sizes.step);
    return choose_less(number, upper, broadcast(range.low), broadcast(range.high)) +
           (extreme ? from_end * broadcast(sizes.inverse_unit) : from_end);
  }

  static constexpr T whole = StepSizes<T>::whole;

  const Range<T> range;
  const StepSizes<T> sizes;
  const bool extreme;
};

}  // namespace
}  // namespace gluon_gc
