// Packs the codes of blockwise (see format.h), a part of a group at a time. For kernel sources only (see
// isa.h).
#pragma once

#include "core/bytes.h"
#include "core/compressors/blockwise/format.h"

namespace gluon_gc {
namespace {

// Packs `width` bits of each code, from bit `shift` on. A code is one byte.
template <int width, int shift>
struct Part {
  // As many codes as the part has bytes. The compiler splits it into registers.
  typedef std::uint64_t Bytes __attribute__((vector_size(blockwise_group / 8 * width)));

  static constexpr std::uint64_t lowest = 0x0101010101010101ul * ((1u << width) - 1);  // `width` bits of each byte

  static void pack(const std::uint8_t* codes, std::uint8_t* to) {
    Bytes packed = {}, here;
    for (int k = 0; k < 8 / width; ++k) {
      std::memcpy(&here, codes + k * sizeof(here), sizeof(here));
      packed |= (here >> shift & lowest) << width * k;
    }
    std::memcpy(to, &packed, sizeof(packed));
  }

  // The inverse. The first part overwrites the codes.
  static void unpack(const std::uint8_t* from, std::uint8_t* codes) {
    Bytes packed, here;
    std::memcpy(&packed, from, sizeof(packed));
    for (int k = 0; k < 8 / width; ++k) {
      if (shift != 0) std::memcpy(&here, codes + k * sizeof(here), sizeof(here));
      const Bytes part = (packed >> width * k & lowest) << shift;
      here = shift != 0 ? here | part : part;
      std::memcpy(codes + k * sizeof(here), &here, sizeof(here));
    }
  }
};

// Calls call(part, at) for each part of a group, which begins at byte `at`.
template <int bits, typename Call>
void for_each_part(Call call) {
  constexpr int after_8 = bits & 8, after_4 = after_8 + (bits & 4), after_2 = after_4 + (bits & 2);
  constexpr std::size_t bytes = blockwise_group / 8;  // of a part with one bit
  if constexpr (bits & 8) call(Part<8, 0>(), 0);
  if constexpr (bits & 4) call(Part<4, after_8>(), bytes * after_8);
  if constexpr (bits & 2) call(Part<2, after_4>(), bytes * after_4);
  if constexpr (bits & 1) call(Part<1, after_2>(), bytes * after_2);
}

// Calls call(bits), with bits from 2 to 8 as a constant.
template <typename Call>
void with_bits(int bits, Call call) {
  switch (bits) {
    case 2: return call(std::integral_constant<int, 2>());
    case 3: return call(std::integral_constant<int, 3>());
    case 4: return call(std::integral_constant<int, 4>());
    case 5: return call(std::integral_constant<int, 5>());
    case 6: return call(std::integral_constant<int, 6>());
    case 7: return call(std::integral_constant<int, 7>());
    default: return call(std::integral_constant<int, 8>());
  }
}

// Packs `groups` groups of codes, one byte each.
inline void pack(const std::uint8_t* codes, std::size_t groups, int bits, std::uint8_t* to) {
  with_bits(bits, [=](auto known) {
    constexpr int bits = decltype(known)::value;
    for (std::size_t group = 0; group < groups; ++group) {
      const std::uint8_t* const from = codes + group * blockwise_group;
      std::uint8_t* const begin = to + group * blockwise_group / 8 * bits;
      for_each_part<bits>([=](auto part, std::size_t at) { part.pack(from, begin + at); });
    }
  });
}

inline void unpack(const std::uint8_t* from, std::size_t groups, int bits, std::uint8_t* codes) {
  with_bits(bits, [=](auto known) {
    constexpr int bits = decltype(known)::value;
    for (std::size_t group = 0; group < groups; ++group) {
      const std::uint8_t* const begin = from + group * blockwise_group / 8 * bits;
      std::uint8_t* const to = codes + group * blockwise_group;
      for_each_part<bits>([=](auto part, std::size_t at) { part.unpack(begin + at, to); });
    }
  });
}

}  // namespace
}  // namespace gluon_gc
