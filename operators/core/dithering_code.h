// The Elias coding of dithering's symbols. For kernel sources only (see isa.h).
#pragma once

#include "core/elias.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

struct Symbol {
  std::uint32_t distance, level;
  bool negative;
  int length;  // of the code; 0 if it is wrong
};

inline Code code_of(std::uint32_t distance, std::uint32_t level, bool negative) {
  return join(join(elias_delta(distance), {negative, 1}), elias_delta(level));
}

inline Symbol symbol_at(const BitReader& reader, std::size_t position) {
  const std::uint64_t bits = reader(position);
  const Number distance = from_elias_delta(bits);
  const bool negative = bits >> distance.length & 1;
  const Number level = from_elias_delta(bits >> (distance.length + 1));
  const bool wrong = distance.length == 0 || level.length == 0;
  return {distance.x, level.x, negative, wrong ? 0 : distance.length + 1 + level.length};
}

inline std::uint32_t plane(const std::uint8_t* group, std::size_t index) {
  std::uint16_t bits;
  std::memcpy(&bits, group + 2 * index, sizeof(bits));
  return bits;
}

// Codes `count` elements from their planes, `planes` of them for each sixteen. Returns the number of bits.
inline std::size_t encode(const std::uint8_t* groups, std::size_t planes, std::size_t count, std::uint8_t* to) {
  BitWriter writer(to);
  std::size_t next = 0;  // the element after the last one that was coded
  for (std::size_t begin = 0; begin < count; begin += lanes, groups += 2 * planes) {
    std::uint32_t nonzero = 0;
    for (std::size_t bit = 1; bit < planes; ++bit) nonzero |= plane(groups, bit);
    for (; nonzero != 0; nonzero &= nonzero - 1) {
      const auto lane = static_cast<std::size_t>(__builtin_ctz(nonzero));
      std::uint32_t level = 0;
      for (std::size_t bit = 1; bit < planes; ++bit) level |= (plane(groups, bit) >> lane & 1) << (bit - 1);
      const std::size_t element = begin + lane;
      writer.put(code_of(static_cast<std::uint32_t>(element + 1 - next), level, plane(groups, 0) >> lane & 1));
      next = element + 1;
    }
  }
  return writer.bits();
}

// Whether `bits` bits are a code of some of `count` elements, of symbols up to `levels`.
inline bool is_code(const BitReader& reader, std::size_t bits, std::size_t count, std::uint32_t levels) {
  std::size_t position = 0, next = 0;
  while (position < bits) {
    const Symbol symbol = symbol_at(reader, position);
    if (symbol.length == 0 || symbol.distance > count - next || symbol.level > levels) return false;
    next += symbol.distance;
    position += static_cast<std::size_t>(symbol.length);
  }
  return position == bits;
}

// Calls each(element, level, negative) for the elements of a code.
template <typename Each>
void decode(const BitReader& reader, std::size_t bits, Each each) {
  std::size_t element = static_cast<std::size_t>(-1);
  for (std::size_t position = 0; position < bits;) {
    const Symbol symbol = symbol_at(reader, position);
    element += symbol.distance;
    each(element, symbol.level, symbol.negative);
    position += static_cast<std::size_t>(symbol.length);
  }
}

}  // namespace
}  // namespace gluon_gc
