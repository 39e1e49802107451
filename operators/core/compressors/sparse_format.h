// The payloads of topk and dgc (see topk.cpp, dgc.cpp), and the comparison of magnitudes. For kernel sources only (see
// isa.h), of host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

// The size in bytes of `count` indices. The values follow them in a payload.
constexpr Size indices_bytes(Size count) { return count * sizeof(uint32); }

template <typename T>
constexpr Size topk_payload_bytes(Size k) {
  return indices_bytes(k) + k * sizeof(T);
}

// The offset of the indices in a payload of dgc, which begins with its own length.
constexpr Size dgc_indices_at = sizeof(uint32);

template <typename T>
constexpr Size dgc_value_bytes(bool half_values) {
  return half_values ? sizeof(uint16) : sizeof(T);
}

template <typename T>
constexpr Size dgc_payload_bytes(Size count, bool half_values) {
  return dgc_indices_at + indices_bytes(count) + count * dgc_value_bytes<T>(half_values);
}

// The number of elements in a payload of dgc, from its length.
template <typename T>
constexpr Size dgc_count(Size payload_bytes, bool half_values) {
  return (payload_bytes - dgc_indices_at) / (sizeof(uint32) + dgc_value_bytes<T>(half_values));
}

// The bits of |x|, as an integer with the order of |x|. All NaNs have the same bits, above infinity.
template <typename T>
GLUON_GC_HOST_DEVICE Bits<T> magnitude_bits(T x) {
  const Bits<T> magnitude = bits_of(absolute(x));
  return magnitude > infinity_bits<T> ? nan_bits<T> : magnitude;
}

// The number of elements in the sample for the threshold of topk.
constexpr uint32 topk_sample = 4096;

// The index of the first of `neighbours` elements in the sample: a pseudo-random one of the `distance` elements from
// place * distance on. A fixed distance might be a multiple of a tensor's row length, and sample one column only.
GLUON_GC_HOST_DEVICE Size sampled_index(uint32 place, Size distance, Size neighbours) {
  const uint64 random = place * 2654435761u;
  return place * distance + (random * (distance - neighbours + 1) >> 32);
}

// Whether the threshold of dgc must change: `count` elements reach it, and the target is `selects`.
GLUON_GC_HOST_DEVICE bool too_many(Size count, Size selects, double upper) {
  return count > selects && static_cast<double>(count) > static_cast<double>(selects) * upper;
}
GLUON_GC_HOST_DEVICE bool too_few(Size count, Size selects, double lower) {
  return count <= selects && static_cast<double>(count) < static_cast<double>(selects) * lower;
}

template <typename T>
GLUON_GC_HOST_DEVICE Bits<T> scaled_threshold(Bits<T> threshold, double factor) {
  return magnitude_bits(from_bits(threshold) * static_cast<T>(factor));
}

}  // namespace
}  // namespace gluon_gc
