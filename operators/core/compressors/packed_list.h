// Lists of numbers of a few bits each, filled from the lowest bit of the first byte on. For kernel sources only (see
// isa.h), of host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

// The size in bytes of `count` numbers of `bits` bits.
constexpr Size packed_bytes(Size count, int bits) { return (count * bits + 7) / 8; }

// Number `i` of a packed list, with at most 12 bits. It may read, but does not use, the byte after the number.
GLUON_GC_HOST_DEVICE uint32 packed_number(const uint8* list, Size i, int bits) {
  const Size first = i * bits;
  const uint8* const at = list + first / 8;
  const int shift = first % 8;
  uint32 word = at[0] | uint32{at[1]} << 8;
  if (shift + bits > 16) word |= uint32{at[2]} << 16;
  return word >> shift & ((1u << bits) - 1);
}

}  // namespace
}  // namespace gluon_gc
