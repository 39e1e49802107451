// Elias-delta codes, and reading and writing bits in memory. For kernel sources only (see isa.h).
//
// The code of a whole number x >= 1, from the lowest bit on, with l = floor(log2 x) and z = floor(log2(l + 1)):
//   [z zeros] [1] [the low z bits of l + 1] [the low l bits of x]
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gluon_gc {
namespace {

constexpr unsigned floor_log2(std::uint32_t x) { return 31u - static_cast<unsigned>(__builtin_clz(x)); }
constexpr std::uint64_t low_bits(std::uint64_t x, unsigned count) {
  return x & ((std::uint64_t{1} << count) - 1);
}

struct Code {
  std::uint64_t bits;
  unsigned length;
};

constexpr Code elias_delta(std::uint32_t x) {
  const unsigned l = floor_log2(x), z = floor_log2(l + 1);
  const std::uint64_t length_code = std::uint64_t{1} << z | low_bits(l + 1, z) << (z + 1);
  return {length_code | low_bits(x, l) << (2 * z + 1), 2 * z + 1 + l};
}

constexpr Code join(const Code& first, const Code& second) {
  return {first.bits | second.bits << first.length, first.length + second.length};
}

// A decoded number and the length of its code in bits. Both are 0 for a malformed code: its number exceeds 32 bits.
struct Number {
  std::uint32_t x;
  unsigned length;
};

constexpr Number from_elias_delta(std::uint64_t bits) {
  constexpr unsigned longest = 5;  // most zeros in the code of a 32-bit number
  const auto z = static_cast<unsigned>(__builtin_ctzll(bits | std::uint64_t{1} << longest));
  const auto l = static_cast<unsigned>(std::uint64_t{1} << z | low_bits(bits >> (z + 1), z)) - 1;
  if (l >= 32) return {0, 0};
  return {static_cast<std::uint32_t>(std::uint64_t{1} << l | low_bits(bits >> (2 * z + 1), l)), 2 * z + 1 + l};
}

// Appends codes of up to 56 bits. May write up to eight bytes past the end of the code.
struct BitWriter {
  explicit BitWriter(std::uint8_t* begin) : begin(begin), at(begin) {}

  void put(const Code& code) {
    pending |= code.bits << count;
    count += code.length;
    std::memcpy(at, &pending, sizeof(pending));
    at += count / 8;
    pending >>= count / 8 * 8;
    count %= 8;
  }

  std::size_t bits() const { return static_cast<std::size_t>(at - begin) * 8 + count; }

  std::uint8_t* const begin;
  std::uint8_t* at;
  std::uint64_t pending = 0;
  unsigned count = 0;  // bits in pending; fewer than 8 between calls
};

// Returns at least 57 bits from `position` on. There are zeros after the last byte.
struct BitReader {
  std::uint64_t operator()(std::size_t position) const {
    const std::uint8_t* const at = begin + position / 8;
    std::uint64_t bits = 0;
    if (static_cast<std::size_t>(end - at) >= sizeof(bits)) {
      std::memcpy(&bits, at, sizeof(bits));
    } else {
      for (const std::uint8_t* byte = at; byte < end; ++byte) bits |= std::uint64_t{*byte} << 8 * (byte - at);
    }
    return bits >> position % 8;
  }

  // The same, if at least 64 bits are left.
  std::uint64_t whole(std::size_t position) const {
    std::uint64_t bits;
    std::memcpy(&bits, begin + position / 8, sizeof(bits));
    return bits >> position % 8;
  }

  const std::uint8_t* begin;
  const std::uint8_t* end;
};

}  // namespace
}  // namespace gluon_gc
