// The payload of onebit, which onebit.cpp describes. For kernel sources only (see isa.h), of host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

constexpr Size word_elements = 32;

constexpr Size word_count(Size n) { return n / word_elements + (n % word_elements != 0); }

// Where the scale is.
constexpr Size scale_at(Size n) { return word_count(n) * sizeof(uint32); }

// The scale, given the sum of the magnitudes.
template <typename T>
GLUON_GC_HOST_DEVICE T onebit_scale(double sum, Size n, bool scaling) {
  const T mean = n == 0 ? T{0} : static_cast<T>(sum / static_cast<double>(n));
  return scaling ? mean : T{1};
}

}  // namespace
}  // namespace gluon_gc
