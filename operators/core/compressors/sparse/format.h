// The payloads of topk and dgc, and the comparison of magnitudes. For kernel sources only (see isa.h), of host and
// device.
//
// A payload has the indices and the values of some elements, in the order of ascending indices:
//
//   [high: a list of bits] [low: low_bits each] [values: T or float16 each]
//
// dgc has the length of its payload, a uint32, before it. Lists are packed (packed_list.h), and end with a whole byte.
// Unused bits are clear.
//
// Indices are in Elias-Fano code (Elias 1974, Fano 1971). The lowest bits of an index are in the list `low`. The other
// bits are its upper part. For element i of the payload, bit i + upper part of `high` is set. The other bits of `high`
// are clear: one for each upper part from 1 to that of index n - 1. With low_bits = floor(log2(n / k)) for k elements,
// an index takes less than low_bits + 3 bits.
//
// The float16 of a value is finite_half_bits. What it loses stays in the residual.
#pragma once

#include "core/compressors/packed_list.h"
#include "core/half_bits.h"
#include "core/host_device.h"

namespace gluon_gc {

// The layout of a payload. All offsets are in bytes. Always inlined, because kernel sources must not share a copy (see
// isa.h).
struct SparseFormat {
  // The number of bits in the list `high`.
  GLUON_GC_HOST_DEVICE Size high_bits(Size count) const { return count + most_upper; }

  GLUON_GC_HOST_DEVICE Size low_at(Size count) const { return begin + packed_bytes(high_bits(count), 1); }
  GLUON_GC_HOST_DEVICE Size values_at(Size count) const { return low_at(count) + packed_bytes(count, low_bits); }

  template <typename T>
  GLUON_GC_HOST_DEVICE Size value_bytes() const {
    return half_values ? sizeof(uint16) : sizeof(T);
  }

  template <typename T>
  GLUON_GC_HOST_DEVICE Size payload_bytes(Size count) const {
    return values_at(count) + count * value_bytes<T>();
  }

  // The number of elements in a payload of this length, which is payload_bytes of some number.
  template <typename T>
  GLUON_GC_HOST_DEVICE Size count_of(Size bytes) const {
    return (8 * (bytes - begin) - most_upper) / (8 * value_bytes<T>() + low_bits + 1);
  }

  uint32 most_upper;  // the upper part of index n - 1
  uint8 low_bits;
  uint8 begin;  // where the lists begin
  bool half_values;
};

namespace {

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
