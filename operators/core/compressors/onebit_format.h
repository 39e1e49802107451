// The payload of onebit (see onebit.cpp) and its scale. For kernel sources only (see isa.h), of host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

constexpr Size word_elements = 32;

constexpr Size word_count(Size n) { return n / word_elements + (n % word_elements != 0); }

// The offset of the scale in a payload.
constexpr Size scale_at(Size n) { return word_count(n) * sizeof(uint32); }

// The scale, from the sum of |p|.
template <typename T>
GLUON_GC_HOST_DEVICE T onebit_scale(double sum, Size n, bool scaling) {
  const T mean = n == 0 ? T{0} : static_cast<T>(sum / static_cast<double>(n));
  return scaling ? mean : T{1};
}

}  // namespace
}  // namespace gluon_gc
