// Writes lists of numbers of a few bits each (packed_list.h). For kernel sources only (see isa.h).
#pragma once

#include <cstdint>

#include "core/bytes.h"

namespace gluon_gc {
namespace {

// Appends numbers of at most 32 bits to a packed list.
struct PackedWriter {
  void add(std::uint32_t number, int bits) {
    held |= std::uint64_t{number} << count;
    for (count += bits; count >= 32; count -= 32) {
      write(to, static_cast<std::uint32_t>(held));
      to += sizeof(std::uint32_t);
      held >>= 32;
    }
  }
  void finish() {
    for (; count > 0; count -= 8, held >>= 8) *to++ = static_cast<std::uint8_t>(held);
  }

  std::uint8_t* to;
  std::uint64_t held = 0;
  int count = 0;
};

}  // namespace
}  // namespace gluon_gc
