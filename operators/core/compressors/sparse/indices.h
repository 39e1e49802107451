// The indices in a sparse payload (format.h). For kernel sources only (see isa.h).
#pragma once

#include "core/bytes.h"
#include "core/compressors/sparse/low_parts.h"
#include "core/compressors/sparse/packed_writer.h"
#include "core/compressors/sparse/format.h"
#include "core/parallel.h"
#include "core/set_bits.h"

namespace gluon_gc {
namespace {

// Writes the indices of a payload.
struct IndexWriter {
  IndexWriter(const SparseFormat& format, std::uint8_t* payload, std::size_t count)
      : format(format), high{payload + format.begin}, low{payload + format.low_at(count)} {}

  // Appends an index, which must be larger than the one before.
  void add(std::uint32_t index) {
    const std::uint32_t next = index >> format.low_bits;
    if (next - upper >= 32) skip_to(next);
    high.add(1u << (next - upper), static_cast<int>(next - upper) + 1);
    upper = next;
    low.add(index & ((1u << format.low_bits) - 1), format.low_bits);
  }

  void finish() {
    skip_to(format.most_upper);
    high.finish();
    low.finish();
  }

  // Appends a clear bit for each upper part above the last one, up to this one.
  void skip_to(std::uint32_t next) {
    for (; next - upper > 32; upper += 32) high.add(0, 32);
    high.add(0, static_cast<int>(next - upper));
    upper = next;
  }

  SparseFormat format;
  PackedWriter high, low;
  std::uint32_t upper = 0;
};

// Reads the indices of a payload.
struct Indices {
  // `end` is where the payload ends. No byte from there on is read.
  Indices(const SparseFormat& format, const std::uint8_t* payload, std::size_t count, const std::uint8_t* end)
      : high(payload + format.begin),
        end(end),
        count(count),
        high_bits(format.high_bits(count)),
        low_bits(format.low_bits),
        low_parts(payload + format.low_at(count), end, format.low_bits) {}

  // Whether there are `count` indices, which ascend and are below n.
  bool valid(std::size_t n) const {
    std::size_t ones = 0;
    for (std::size_t bit = 0; bit < high_bits; bit += 64) ones += __builtin_popcountll(high_word(bit));
    if (ones != count) return false;
    std::size_t least = 0;  // of the next index
    std::uint32_t wrong = 0;
    for_each_group([&](std::size_t, const std::uint32_t* indices, std::size_t size) {
      wrong |= indices[0] < least;
      for (std::size_t j = 1; j < size; ++j) wrong |= indices[j] <= indices[j - 1];
      least = std::size_t{indices[size - 1]} + 1;
    });
    return wrong == 0 && least <= n;
  }

  // Calls step(first, indices, size) for groups of indices: the indices of elements first, ..., first + size - 1. No
  // group is empty, and `first` is a multiple of eight.
  template <typename Step>
  void for_each_group(Step step) const {
    std::uint32_t places[group_room + 8];  // of set bits in the list `high`
    std::uint32_t indices[group_room];
    std::size_t first = 0, size = 0;
    for (std::size_t bit = 0; bit < high_bits; bit += word_bits) {
      size += list_places(high_word(bit), static_cast<std::uint32_t>(bit), places + size);
      const bool last = bit + word_bits >= high_bits;
      if (size == 0 || (size < group_least && !last)) continue;
      const std::size_t ready = last ? size : size / 8 * 8;
      join(places, first, ready, indices);
      step(first, indices, ready);
      first += ready;
      size -= ready;
      for (std::size_t j = 0; j < size; ++j) places[j] = places[ready + j];
    }
  }

  // Writes the indices of elements first, ..., first + size - 1, given the places of their bits in the list `high`.
  void join(const std::uint32_t* places, std::size_t first, std::size_t size, std::uint32_t* indices) const {
    low_parts.read_from(first, size, indices);
#pragma omp simd
    for (std::size_t j = 0; j < size; ++j) {
      indices[j] |= (places[j] - static_cast<std::uint32_t>(first + j)) << low_bits;
    }
  }

  // Calls step(first, indices, size) for groups of indices below n, from a thread that owns the range of these indices.
  template <typename Step>
  void for_each_group(std::size_t n, int threads, Step step) const {
    const Indices self = *this;
    Blocks<16384>(n).run_parts(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
      self.for_each_group([=](std::size_t first, const std::uint32_t* indices, std::size_t size) {
        std::size_t before = 0;
        while (before < size && indices[before] < begin) ++before;
        while (size > before && indices[size - 1] >= end) --size;
        step(first + before, indices + before, size - before);
      });
    });
  }

  // 64 bits of the list `high`, from this one on. Bits past the end are clear.
  std::uint64_t high_word(std::size_t bit) const {
    const std::uint64_t word = read_until<std::uint64_t>(high + bit / 8, end);
    return high_bits - bit < word_bits ? word & ((std::uint64_t{1} << (high_bits - bit)) - 1) : word;
  }

  static constexpr std::size_t word_bits = 64, group_least = 128, group_room = group_least + word_bits;

  const std::uint8_t *const high, *const end;
  const std::size_t count, high_bits;
  const int low_bits;
  const LowParts low_parts;
};

}  // namespace
}  // namespace gluon_gc
