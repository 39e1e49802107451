// Writes and reads the records of blocktopk (format.h). For kernel sources only (see isa.h).
#pragma once

#include "core/bytes.h"
#include "core/compressors/blocktopk/format.h"
#include "core/compressors/packed_eights.h"
#include "core/sums.h"
#include "core/vec_bytes.h"
#include "core/vec_int.h"

namespace gluon_gc {
namespace {

// The elements of a record are processed in whole groups. An array for a block has room for the last one.
constexpr std::size_t record_group = sum_chains;
static_assert(blocktopk_most_block % record_group == 0, "");

// Appends zeros up to a whole group.
template <typename Value>
void fill_up(Value* values, std::size_t count) {
  for (; count % record_group != 0; ++count) values[count] = 0;
}

// Writes a packed list of numbers, which are filled up.
template <typename Number>
void write_list(const Number* numbers, std::size_t count, int bits, std::uint8_t* to) {
  std::uint8_t packed[packed_room(blocktopk_most_block, blocktopk_most_index_bits)];
  pack(numbers, count, bits, packed);
  std::memcpy(to, packed, packed_bytes(count, bits));
}

// Reads a packed list of numbers, and some more up to a whole group.
template <typename Number>
void read_list(const std::uint8_t* from, std::size_t count, int bits, Number* numbers) {
  std::uint8_t packed[packed_room(blocktopk_most_block, blocktopk_most_index_bits)];
  std::memcpy(packed, from, packed_bytes(count, bits));
  unpack(packed, count, bits, numbers);
}

// The levels of 8 or 4 bits. The values are filled up with zeros.
template <typename T>
BlocktopkLevels<T> even_levels(const T* values, std::size_t count, int bits) {
  Bits<T> largest = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const Bits<T> magnitude = bits_of(absolute(values[j]));
    largest = magnitude > largest ? magnitude : largest;
  }
  return {bits, from_bits(largest), 0};
}

// Vectors of what BlocktopkLevels computes for each element, with the same bits.
template <typename T, int bits>
struct LevelVectors {
  static constexpr T level_count = static_cast<T>((1 << (bits - 1)) - 1), sign = static_cast<T>(1 << (bits - 1));

  explicit LevelVectors(const BlocktopkLevels<T>& levels)
      : scale(broadcast(levels.scale)), high(broadcast(levels.high)), most(broadcast(level_count)) {}

  // The numbers of even levels. Replaces x by their values. Floats of the size of `whole` have no fraction.
  Vec<std::uint8_t> round(Vec<T>& x) const {
    const Vec<T> whole = broadcast(static_cast<T>(sizeof(T) == 4 ? 0x1p23 : 0x1p52)), half = broadcast(sign / 2);
    const Vec<T> place = magnitude(x) / scale * most;
    const Vec<T> rounded = greater(place, broadcast(T{0})) + whole;  // 0 / 0 is a NaN, and becomes 0
    const Vec<T> sign_or_zero = half - with_sign_of(x, half);
    x = with_sign_of(x, (rounded - whole) / most * scale);
    return lowest_bytes(rounded + sign_or_zero);
  }

  Vec<T> values(const Vec<std::uint8_t>& numbers) const {
    const Vec<T> number = widen<T>(numbers), sign_bit = broadcast(sign);
    const std::uint32_t positive = less(number, sign_bit);
    const Vec<T> level = choose(positive, number, number - sign_bit);
    const Vec<T> magnitude = bits == 2 ? choose_less(level, broadcast(T{1}), scale, high) : level / most * scale;
    return negate(positive ^ all_bits(All{}), magnitude);
  }

  const Vec<T> scale, high, most;
};

// The levels of 2 bits, and the mean magnitude that separates them. The values are filled up with zeros, which change
// no sum. Sums are in float64: value j is added to chain j mod 32, and the chains are added in the order of sum_tree.h.
template <typename T>
BlocktopkLevels<T> two_levels(const T* values, std::size_t count, T& split) {
  double all[sum_chains] = {}, low[sum_chains] = {}, high[sum_chains] = {};
  for (std::size_t j = 0; j < count; j += sum_chains) {
#pragma omp simd
    for (std::size_t i = 0; i < sum_chains; ++i) all[i] += static_cast<double>(absolute(values[j + i]));
  }
  const T mean = blocktopk_mean<T>(butterfly(all), count);
  Bits<T> high_count = 0;
  for (std::size_t j = 0; j < count; ++j) high_count += absolute(values[j]) >= mean;
  for (std::size_t j = 0; j < count; j += sum_chains) {
#pragma omp simd
    for (std::size_t i = 0; i < sum_chains; ++i) {
      const T magnitude = absolute(values[j + i]);
      const Bits<T> is_high = magnitude >= mean ? ~Bits<T>{0} : 0;  // a mask, because a branch would be unpredictable
      low[i] += static_cast<double>(from_bits(bits_of(magnitude) & ~is_high));
      high[i] += static_cast<double>(from_bits(bits_of(magnitude) & is_high));
    }
  }
  split = mean;
  return {2, blocktopk_mean<T>(butterfly(low), count - high_count), blocktopk_mean<T>(butterfly(high), high_count)};
}

// A record in a payload, of bytes that are constant if it is only read. The arrays that its functions take have room
// for whole groups.
template <typename T, typename Byte = const std::uint8_t>
struct BlocktopkRecord {
  BlocktopkRecord(const BlocktopkFormat& format, Byte* payload, std::size_t block)
      : format(format),
        count(format.kept_of(block)),
        scales(payload + format.record_at<T>(block)),
        index_list(scales + format.indices_at<T>()),
        value_list(scales + format.values_at<T>(count)) {}

  // Writes the elements with these indices, whose values are x. Replaces x by what the record decodes to.
  void write_elements(std::uint16_t* indices, T* x) const {
    fill_up(indices, count);
    write_list(indices, count, format.index_bits, index_list);
    switch (format.value_bits) {
      case 32: std::memcpy(value_list, x, count * sizeof(T)); break;
      case 16: write_halves(x); break;
      case 8: write_levels<8>(x); break;
      case 4: write_levels<4>(x); break;
      default: write_levels<2>(x);
    }
  }

  void read_indices(std::uint16_t* indices) const { read_list(index_list, count, format.index_bits, indices); }

  void read_values(T* x) const {
    switch (format.value_bits) {
      case 32: std::memcpy(x, value_list, count * sizeof(T)); break;
      case 16: read_halves(x); break;
      case 8: read_levels<8>(x); break;
      case 4: read_levels<4>(x); break;
      default: read_levels<2>(x);
    }
  }

  bool finite() const {
    if (format.scales() != 0) return all_finite<T>(scales, format.scales());
    if (format.value_bits == 32) return all_finite<T>(value_list, count);
    bool finite = true;
    for (std::size_t j = 0; j < count; ++j) finite &= half_is_finite(half(j));
    return finite;
  }

 private:
  void write_halves(T* x) const {
    for (std::size_t j = 0; j < count; ++j) write(value_list + j * sizeof(std::uint16_t), finite_half_bits(x[j]));
    read_halves(x);
  }

  void read_halves(T* x) const {
    for (std::size_t j = 0; j < count; ++j) x[j] = half_value(half(j));
  }

  std::uint16_t half(std::size_t j) const { return read<std::uint16_t>(value_list + j * sizeof(std::uint16_t)); }

  template <int bits>
  void write_levels(T* x) const {
    fill_up(x, count);
    T split = 0;
    const BlocktopkLevels<T> levels = bits == 2 ? two_levels(x, count, split) : even_levels(x, count, bits);
    write(scales, levels.scale);
    if (bits == 2) write(scales + sizeof(T), levels.high);
    std::uint8_t numbers[blocktopk_most_block];
    bits == 2 ? round_to_two(levels, split, x, numbers) : round_evenly<bits>(levels, x, numbers);
    fill_up(numbers, count);
    write_list(numbers, count, bits, value_list);
  }

  void round_to_two(const BlocktopkLevels<T>& levels, T split, T* x, std::uint8_t* numbers) const {
    for (std::size_t j = 0; j < count; j += record_group) {
#pragma omp simd
      for (std::size_t i = j; i < j + record_group; ++i) {
        numbers[i] = static_cast<std::uint8_t>(levels.number(x[i], split));
        x[i] = levels.value(numbers[i]);
      }
    }
  }

  template <int bits>
  void round_evenly(const BlocktopkLevels<T>& levels, T* x, std::uint8_t* numbers) const {
    const LevelVectors<T, bits> vectors(levels);
    for (std::size_t j = 0; j < count; j += lanes) {
      Vec<T> here = load(x + j, All{});
      store(vectors.round(here), numbers + j, All{});
      store(here, x + j, All{});
    }
  }

  template <int bits>
  void read_levels(T* x) const {
    const LevelVectors<T, bits> vectors({bits, read<T>(scales), bits == 2 ? read<T>(scales + sizeof(T)) : T{0}});
    std::uint8_t numbers[blocktopk_most_block];
    read_list(value_list, count, bits, numbers);
    for (std::size_t j = 0; j < count; j += lanes) store(vectors.values(load(numbers + j, All{})), x + j, All{});
  }

  const BlocktopkFormat& format;
  const std::size_t count;
  Byte *const scales, *const index_list, *const value_list;
};

}  // namespace
}  // namespace gluon_gc
