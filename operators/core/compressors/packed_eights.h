// Packs and unpacks lists of numbers of at most 16 bits each (packed_list.h), eight at a time. For kernel sources only
// (see isa.h).
#pragma once

#include "core/bytes.h"
#include "core/compressors/packed_list.h"

namespace gluon_gc {
namespace {

using Eight = unsigned __int128;  // eight packed numbers

// The size in bytes of a buffer for `count` packed numbers. The functions below access whole Eights.
constexpr std::size_t packed_room(std::size_t count, int bits) { return packed_bytes(count, bits) + sizeof(Eight); }

// Packs numbers, which are followed by zeros up to a multiple of eight.
template <typename Number>
void pack(const Number* numbers, std::size_t count, int bits, std::uint8_t* to) {
  for (std::size_t j = 0; j < count; j += 8, to += bits) {
    std::uint64_t low = 0, high = 0;
    for (int i = 0; i < 4; ++i) {
      low |= std::uint64_t{numbers[j + i]} << i * bits;
      high |= std::uint64_t{numbers[j + 4 + i]} << i * bits;
    }
    write(to, low | static_cast<Eight>(high) << 4 * bits);
  }
}

// Unpacks numbers. Others follow, up to a multiple of eight.
template <typename Number>
void unpack(const std::uint8_t* from, std::size_t count, int bits, Number* numbers) {
  const std::uint64_t mask = (1u << bits) - 1;
  for (std::size_t j = 0; j < count; j += 8, from += bits) {
    const Eight eight = read<Eight>(from);
    const auto low = static_cast<std::uint64_t>(eight), high = static_cast<std::uint64_t>(eight >> 4 * bits);
    for (int i = 0; i < 4; ++i) {
      numbers[j + i] = static_cast<Number>(low >> i * bits & mask);
      numbers[j + 4 + i] = static_cast<Number>(high >> i * bits & mask);
    }
  }
}

}  // namespace
}  // namespace gluon_gc
