// The payload of blocktopk (see blocktopk.cpp) and the rounding of its values. For kernel sources only (see isa.h), of
// host and device.
//
// A payload is one record for each block of elements. All records of whole blocks have the same length. The last block
// may be shorter, and then so is its record:
//
//   [scales: T each] [indices in the block, ascending: index_bits each] [values: value_bits each]
//
// Indices and values are packed from the lowest bit of the first byte on, and each list ends with a whole byte. Unused
// bits are clear. The values of a block whose kept elements are x, and whose largest kept magnitude is s:
//
//   32 bits  x itself, with the bits of T. No scale.
//   16 bits  finite_half_bits of x. No scale.
//   8, 4     the sign of x in the highest bit, then j = round(|x| / s * L), ties to even, where L = 2^(bits - 1) - 1.
//            It decodes to j / L * s, so s is exact. j = 0 if s = 0. One scale: s.
//   2 bits   the sign of x in the highest bit; the lowest bit is set if |x| >= the mean kept magnitude. Two scales: the
//            mean magnitude of the elements without this bit, and of those with it; 0 if there are none.
//
// No choice makes the squared error of a block larger than the sum of the squared elements, as error feedback needs.
// With 2 bits and even levels up to s it could be, because a single large element would enlarge all others.
// SparseLoCo's code decodes 2-bit values to means too, four for a tensor.
#pragma once

#include "core/compressors/packed_list.h"
#include "core/half_bits.h"
#include "core/host_device.h"

namespace gluon_gc {
namespace {

constexpr Size blocktopk_least_block = 256, blocktopk_most_block = 4096;
constexpr int blocktopk_most_index_bits = 12;

// The layout of a payload.
struct BlocktopkFormat {
  GLUON_GC_HOST_DEVICE Size blocks() const { return n / block + (n % block != 0); }
  GLUON_GC_HOST_DEVICE Size size_of(Size index) const { return index == n / block ? n % block : block; }
  GLUON_GC_HOST_DEVICE Size kept_of(Size index) const { return index == n / block ? kept_of_rest : kept; }

  GLUON_GC_HOST_DEVICE Size scales() const { return value_bits > 8 ? 0 : value_bits == 2 ? 2 : 1; }

  template <typename T>
  GLUON_GC_HOST_DEVICE int bits_of_value() const {
    return value_bits == 32 ? 8 * sizeof(T) : value_bits;
  }

  // Offsets in a record.
  template <typename T>
  GLUON_GC_HOST_DEVICE Size indices_at() const {
    return scales() * sizeof(T);
  }
  template <typename T>
  GLUON_GC_HOST_DEVICE Size values_at(Size count) const {
    return indices_at<T>() + packed_bytes(count, index_bits);
  }

  template <typename T>
  GLUON_GC_HOST_DEVICE Size record_bytes(Size count) const {
    return values_at<T>(count) + packed_bytes(count, bits_of_value<T>());
  }

  // The offset of a record in the payload.
  template <typename T>
  GLUON_GC_HOST_DEVICE Size record_at(Size index) const {
    return index * record_bytes<T>(kept);
  }

  template <typename T>
  GLUON_GC_HOST_DEVICE Size payload_bytes() const {
    return record_at<T>(n / block) + (n % block == 0 ? 0 : record_bytes<T>(kept_of_rest));
  }

  Size n, block;
  Size kept;          // elements that a whole block sends
  Size kept_of_rest;  // elements that the last block sends if it is shorter
  int index_bits;     // log2(block)
  int value_bits;
};

// The scales of a block, and its values as numbers of 8, 4 or 2 bits.
template <typename T>
struct BlocktopkLevels {
  // The number of x. `split` is the mean kept magnitude, for 2 bits.
  GLUON_GC_HOST_DEVICE uint32 number(T x, T split) const {
    const uint32 sign = static_cast<uint32>(bits_of(x) >> sign_shift<T>) << (bits - 1);
    if (bits == 2) return sign | (absolute(x) >= split);
    constexpr T whole = static_cast<T>(sizeof(T) == 4 ? 0x1p23 : 0x1p52);  // adding it rounds to a whole number
    const T place = absolute(x) / scale * levels();
    return sign | (place > 0 ? static_cast<uint32>(bits_of(place + whole)) & most() : 0);  // 0 / 0 is a NaN
  }

  GLUON_GC_HOST_DEVICE T value(uint32 number) const {
    const uint32 level = number & most();
    const T magnitude = bits != 2 ? static_cast<T>(level) / levels() * scale : level == 0 ? scale : high;
    return number >> (bits - 1) != 0 ? -magnitude : magnitude;
  }

  GLUON_GC_HOST_DEVICE uint32 most() const { return (1u << (bits - 1)) - 1; }
  GLUON_GC_HOST_DEVICE T levels() const { return static_cast<T>(most()); }

  int bits;
  T scale;  // with 2 bits: the mean magnitude of the elements whose lowest bit is clear
  T high;   // with 2 bits: of those whose lowest bit is set
};

// x, or the NaN of payloads if x is a NaN.
template <typename T>
GLUON_GC_HOST_DEVICE T with_one_nan(T x) {
  return x == x ? x : not_a_number<T>();
}

// The mean of `count` magnitudes; 0 if there are none.
template <typename T>
GLUON_GC_HOST_DEVICE T blocktopk_mean(double sum, Size count) {
  return count == 0 ? T{0} : with_one_nan(static_cast<T>(sum / static_cast<double>(count)));
}

}  // namespace
}  // namespace gluon_gc
