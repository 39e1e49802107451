// The Elias coding of the symbols and signs of dithering (see dithering.cpp). For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/dithering/elias.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

// The value of an element is 2 * symbol + (1 if the element is negative). Its code is the sign, then the symbol.
constexpr Code code_of_value(std::uint32_t value) { return join({value & 1, 1}, elias_delta(value >> 1)); }

// A table of the codes of small numbers, which are most of them.
template <std::uint32_t least, std::uint32_t count, Code (*code)(std::uint32_t)>
struct CodeTable {
  constexpr CodeTable() : codes{} {
    for (std::uint32_t x = least; x < count; ++x) codes[x] = code(x);
  }
  constexpr Code operator()(std::uint32_t x) const { return x < count ? codes[x] : code(x); }

  Code codes[count];
};
constexpr CodeTable<1, 128, elias_delta> distance_codes;
constexpr CodeTable<2, 64, code_of_value> value_codes;

// Bit plane `index` of a group of 16 elements.
inline std::uint32_t plane(const std::uint8_t* group, std::size_t index) {
  std::uint16_t bits;
  std::memcpy(&bits, group + 2 * index, sizeof(bits));
  return bits;
}

constexpr std::size_t chunk_elements = 64;
constexpr std::size_t most_planes = 24;

// Encodes `count` elements from their bit planes. Returns the number of bits.
inline std::size_t encode(const std::uint8_t* groups, std::size_t planes, std::size_t count, std::uint8_t* to) {
  BitWriter writer(to);
  std::size_t next = 0;  // the element after the last one that was coded
  for (std::size_t begin = 0; begin < count; begin += chunk_elements) {
    std::uint64_t chunk[most_planes] = {}, nonzero = 0;
    for (std::size_t part = 0; part < chunk_elements && begin + part < count; part += lanes) {
      for (std::size_t i = 0; i < planes; ++i) chunk[i] |= std::uint64_t{plane(groups, i)} << part;
      groups += 2 * planes;
    }
    for (std::size_t i = 1; i < planes; ++i) nonzero |= chunk[i];
    for (; nonzero != 0; nonzero &= nonzero - 1) {
      const int place = __builtin_ctzll(nonzero);
      std::uint32_t value = 0;
      for (std::size_t i = 0; i < planes; ++i) {
        value |= static_cast<std::uint32_t>(chunk[i] >> place & 1) << i;
      }
      const std::size_t element = begin + static_cast<std::size_t>(place);
      writer.put(distance_codes(static_cast<std::uint32_t>(element + 1 - next)));  // together they may be too long
      writer.put(value_codes(value));
      next = element + 1;
    }
  }
  return writer.bits();
}

// The code of four elements with three planes, without the distance of the first element that is not 0.
struct Window {
  static constexpr int size = 4, planes = 3;

  std::uint32_t bits;
  std::uint8_t length;
  std::uint8_t first, end;  // the first element that is not 0, and the place after the last one
};

// All windows, by four bits of each plane.
struct Windows {
  static constexpr std::size_t count = 1 << Window::planes * Window::size;

  constexpr Windows() : table{} {
    for (std::uint32_t index = 0; index < count; ++index) {
      Code codes = {0, 0};
      int first = 0, end = 0;
      for (int i = 0; i < Window::size; ++i) {
        const std::uint32_t value = (index >> i & 1) | (index >> (i + 4) & 1) << 1 | (index >> (i + 8) & 1) << 2;
        if (value < 2) continue;
        if (end == 0) {
          first = i;
        } else {
          codes = join(codes, distance_codes(static_cast<std::uint32_t>(i + 1 - end)));
        }
        codes = join(codes, value_codes(value));
        end = i + 1;
      }
      table[index] = {static_cast<std::uint32_t>(codes.bits), static_cast<std::uint8_t>(codes.length),
                      static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(end)};
    }
  }

  Window table[count];
};
constexpr Windows windows;

// The same for three planes, by windows of four elements.
inline std::size_t encode_three_planes(const std::uint8_t* groups, std::size_t count, std::uint8_t* to) {
  constexpr std::uint64_t first_of_four = 0x1111111111111111;
  BitWriter writer(to);
  std::size_t next = 0;  // the element after the last one that was coded
  for (std::size_t begin = 0; begin < count; begin += chunk_elements) {
    std::uint64_t signs = 0, low = 0, high = 0;
    for (std::size_t part = 0; part < chunk_elements && begin + part < count; part += lanes) {
      signs |= std::uint64_t{plane(groups, 0)} << part;
      low |= std::uint64_t{plane(groups, 1)} << part;
      high |= std::uint64_t{plane(groups, 2)} << part;
      groups += 2 * Window::planes;
    }
    const std::uint64_t nonzero = low | high, pairs = nonzero | nonzero >> 1;
    for (std::uint64_t left = (pairs | pairs >> 2) & first_of_four; left != 0; left &= left - 1) {
      const int place = __builtin_ctzll(left);
      const std::uint64_t index = (signs >> place & 15) | (low >> place & 15) << 4 | (high >> place & 15) << 8;
      const Window& window = windows.table[index];
      const std::size_t four = begin + static_cast<std::size_t>(place);
      const Code distance = distance_codes(static_cast<std::uint32_t>(four + window.first + 1 - next));
      writer.put(join(distance, {window.bits, window.length}));
      next = four + window.end;
    }
  }
  return writer.bits();
}

// The one or two elements that the next Lookup::bits bits encode. If there is no second one, its distance and value
// are 0.
struct Entry {
  std::uint8_t length;  // bits of the codes; 0: the code of the first element is too long
  std::uint8_t distance[2], value[2];
};

struct Element {
  std::uint32_t distance, value;
  unsigned length;  // bits of the code; 0: the code is malformed
};

// Decodes the element at the start of `bits`.
constexpr Element element_at(std::uint64_t bits) {
  const Number distance = from_elias_delta(bits);
  const Number symbol = from_elias_delta(bits >> (distance.length + 1));
  const std::uint32_t sign = bits >> distance.length & 1;
  if (distance.length == 0 || symbol.length == 0) return {0, 0, 0};
  return {distance.x, symbol.x << 1 | sign, distance.length + 1 + symbol.length};
}

struct Lookup {
  static constexpr unsigned bits = 11;

  constexpr Lookup() : entries{} {
    for (std::uint64_t index = 0; index < 1 << bits; ++index) {
      Entry& entry = entries[index];
      for (int i = 0; i < 2; ++i) {
        const Element element = element_at(index >> entry.length);
        if (element.length == 0 || entry.length + element.length > bits) break;
        entry.length = static_cast<std::uint8_t>(entry.length + element.length);
        entry.distance[i] = static_cast<std::uint8_t>(element.distance);
        entry.value[i] = static_cast<std::uint8_t>(element.value);
      }
    }
  }

  Entry entries[1 << bits];
};
constexpr Lookup lookup;

// Decodes `bits` bits: calls each(element, value) for each encoded element, in order. It may also repeat the last
// element, with the value 0. Returns whether the bits are well-formed and end with a whole code.
template <typename Each>
inline bool decode(const BitReader& reader, std::size_t bits, Each each) {
  constexpr std::size_t window = 64;
  constexpr int lookups = 4;  // that the 57 bits of a read are enough for
  std::size_t last = static_cast<std::size_t>(-1), position = 0;
  while (position < bits) {
    if (position + window <= bits) {
      std::uint64_t ahead = reader.whole(position);
      Entry entry = {};
      for (int k = 0; k < lookups; ++k) {
        entry = lookup.entries[low_bits(ahead, Lookup::bits)];
        if (entry.length == 0) break;
        ahead >>= entry.length;
        position += entry.length;
        for (int i = 0; i < 2; ++i) {
          last += entry.distance[i];
          each(last, entry.value[i]);
        }
      }
      if (entry.length != 0) continue;
    }
    const Element element = element_at(reader(position));
    position += element.length;
    last += element.distance;
    if (element.length == 0 || position > bits) return false;
    each(last, element.value);
  }
  return true;
}

// Whether `bits` bits are a well-formed code of elements below `count`, with symbols up to `most`.
inline bool is_code(const BitReader& reader, std::size_t bits, std::size_t count, std::uint32_t most) {
  std::size_t last = 0;
  std::uint32_t largest = 0;
  const bool whole = decode(reader, bits, [&](std::size_t element, std::uint32_t value) {
    last = element;
    largest = value > largest ? value : largest;
  });
  return whole && (bits == 0 || last < count) && largest >> 1 <= most;
}

}  // namespace
}  // namespace gluon_gc
