// Payloads of indices and values, which topk.cpp and dgc.cpp describe, and the magnitudes by which elements are chosen.
// For kernel sources only (see isa.h), of host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

// Bytes of `count` indices, which the values follow.
constexpr Size indices_bytes(Size count) { return count * sizeof(uint32); }

template <typename T>
constexpr Size topk_payload_bytes(Size k) {
  return indices_bytes(k) + k * sizeof(T);
}

// A payload of dgc begins with its own length.
constexpr Size dgc_indices_at = sizeof(uint32);

template <typename T>
constexpr Size dgc_value_bytes(bool half_values) {
  return half_values ? sizeof(uint16) : sizeof(T);
}

template <typename T>
constexpr Size dgc_payload_bytes(Size count, bool half_values) {
  return dgc_indices_at + indices_bytes(count) + count * dgc_value_bytes<T>(half_values);
}

// The number of elements in a payload of dgc.
template <typename T>
constexpr Size dgc_count(Size payload_bytes, bool half_values) {
  return (payload_bytes - dgc_indices_at) / (sizeof(uint32) + dgc_value_bytes<T>(half_values));
}

// The bits of |x|, which are in the order of |x|. All NaNs are the same one.
template <typename T>
GLUON_GC_HOST_DEVICE Bits<T> magnitude_bits(T x) {
  const Bits<T> magnitude = bits_of(absolute(x));
  return magnitude > infinity_bits<T> ? nan_bits<T> : magnitude;
}

// Elements that the threshold of topk is estimated from.
constexpr uint32 topk_sample = 4096;

// The first of `neighbours` elements of that sample, which are number `place`, `distance` elements from place to place:
// no row length divides the distances between them.
GLUON_GC_HOST_DEVICE Size sampled_index(uint32 place, Size distance, Size neighbours) {
  const uint64 random = place * 2654435761u;
  return place * distance + (random * (distance - neighbours + 1) >> 32);
}

// Whether the threshold of dgc must change: `count` elements reach it, but it is to select `selects`.
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
