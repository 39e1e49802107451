// Packs the codes of blockwise (see blockwise_format.h), eight bytes at a time. For kernel sources only (see isa.h).
#pragma once

#include "core/bytes.h"
#include "core/compressors/blockwise_format.h"

namespace gluon_gc {
namespace {

constexpr std::size_t group_words = blockwise_group / sizeof(std::uint64_t);

// The lowest `width` bits of each byte.
template <int width>
constexpr std::uint64_t low_bits_of_bytes = 0x0101010101010101ul * ((1u << width) - 1);

// Packs `width` bits of each code, from bit `shift` on.
template <int width>
void pack_part(const std::uint64_t* codes, int shift, std::uint8_t* to) {
  constexpr std::size_t words = 2 * width;
  std::uint64_t packed[words];
  for (std::size_t i = 0; i < words; ++i) {
    packed[i] = 0;
    for (int k = 0; k < 8 / width; ++k) {
      packed[i] |= (codes[i + k * words] >> shift & low_bits_of_bytes<width>) << width * k;
    }
  }
  std::memcpy(to, packed, sizeof(packed));
}

template <int width>
void unpack_part(const std::uint8_t* from, int shift, std::uint64_t* codes) {
  constexpr std::size_t words = 2 * width;
  std::uint64_t packed[words];
  std::memcpy(packed, from, sizeof(packed));
  for (int k = 0; k < 8 / width; ++k) {
    for (std::size_t i = 0; i < words; ++i) {
      codes[i + k * words] |= (packed[i] >> width * k & low_bits_of_bytes<width>) << shift;
    }
  }
}

// Packs a group of codes, one byte each.
template <int bits>
void pack_group(const std::uint8_t* codes, std::uint8_t* to) {
  std::uint64_t words[group_words];
  std::memcpy(words, codes, sizeof(words));
  int shift = 0;
  const auto part = [&](auto width) {
    constexpr int bits_of_part = bits & decltype(width)::value;
    if constexpr (bits_of_part != 0) pack_part<bits_of_part>(words, shift, to + 16 * shift);
    shift += bits_of_part;
  };
  part(std::integral_constant<int, 8>());
  part(std::integral_constant<int, 4>());
  part(std::integral_constant<int, 2>());
  part(std::integral_constant<int, 1>());
}

template <int bits>
void unpack_group(const std::uint8_t* from, std::uint8_t* codes) {
  std::uint64_t words[group_words] = {};
  int shift = 0;
  const auto part = [&](auto width) {
    constexpr int bits_of_part = bits & decltype(width)::value;
    if constexpr (bits_of_part != 0) unpack_part<bits_of_part>(from + 16 * shift, shift, words);
    shift += bits_of_part;
  };
  part(std::integral_constant<int, 8>());
  part(std::integral_constant<int, 4>());
  part(std::integral_constant<int, 2>());
  part(std::integral_constant<int, 1>());
  std::memcpy(codes, words, sizeof(words));
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

// Packs `groups` groups of codes.
inline void pack(const std::uint8_t* codes, std::size_t groups, int bits, std::uint8_t* to) {
  with_bits(bits, [=](auto known) {
    for (std::size_t group = 0; group < groups; ++group) {
      constexpr int bits = decltype(known)::value;
      pack_group<bits>(codes + group * blockwise_group, to + group * blockwise_group / 8 * bits);
    }
  });
}

inline void unpack(const std::uint8_t* from, std::size_t groups, int bits, std::uint8_t* codes) {
  with_bits(bits, [=](auto known) {
    for (std::size_t group = 0; group < groups; ++group) {
      constexpr int bits = decltype(known)::value;
      unpack_group<bits>(from + group * blockwise_group / 8 * bits, codes + group * blockwise_group);
    }
  });
}

}  // namespace
}  // namespace gluon_gc
