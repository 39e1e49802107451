// The indices in a sparse payload (sparse_format.h). For kernel sources only (see isa.h).
#pragma once

#include "core/bytes.h"
#include "core/compressors/packed_writer.h"
#include "core/compressors/sparse_format.h"
#include "core/parallel.h"

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
        low(payload + format.low_at(count)),
        end(end),
        count(count),
        high_bits(format.high_bits(count)),
        low_bits(format.low_bits) {}

  // Whether there are `count` indices, which ascend and are below n.
  bool valid(std::size_t n) const {
    std::size_t ones = 0;
    for (std::size_t bit = 0; bit < high_bits; bit += 64) ones += __builtin_popcountll(high_word(bit));
    if (ones != count) return false;
    std::size_t least = 0;
    bool valid = true;
    for_each_group([&](std::size_t, const std::uint32_t* indices, std::size_t size) {
      for (std::size_t j = 0; j < size; ++j) {
        valid &= indices[j] >= least;
        least = std::size_t{indices[j]} + 1;
      }
    });
    return valid && least <= n;
  }

  // Calls step(first, indices, size) for groups of indices: the indices of elements first, ..., first + size - 1.
  template <typename Step>
  void for_each_group(Step step) const {
    constexpr std::size_t bits = 64;
    std::uint32_t indices[2 * bits];
    std::size_t first = 0, size = 0;
    for (std::size_t bit = 0; bit < high_bits; bit += bits) {
      for (std::uint64_t ones = high_word(bit); ones != 0; ones &= ones - 1, ++size) {
        const std::size_t i = first + size, upper = bit + __builtin_ctzll(ones) - i;
        indices[size] = static_cast<std::uint32_t>(upper << low_bits) | low_part(i);
      }
      if (size < bits && bit + bits < high_bits) continue;
      step(first, indices, size);
      first += size;
      size = 0;
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
    const std::uint64_t word = word_at(high + bit / 8);
    return high_bits - bit < 64 ? word & ((std::uint64_t{1} << (high_bits - bit)) - 1) : word;
  }

  std::uint32_t low_part(std::size_t i) const {
    const std::size_t bit = i * low_bits;
    return static_cast<std::uint32_t>(word_at(low + bit / 8) >> bit % 8) & ((1u << low_bits) - 1);
  }

  // The eight bytes from `at`. Bytes past the end are 0.
  std::uint64_t word_at(const std::uint8_t* at) const {
    if (end - at >= 8) return read<std::uint64_t>(at);
    std::uint64_t word = 0;
    std::memcpy(&word, at, end - at);
    return word;
  }

  const std::uint8_t *const high, *const low, *const end;
  const std::size_t count, high_bits;
  const int low_bits;
};

}  // namespace
}  // namespace gluon_gc
