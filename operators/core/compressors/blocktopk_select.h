// The choice of blocktopk: the elements of a block with the largest magnitudes. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/blocktopk_format.h"
#include "core/compressors/topk_threshold.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t group_elements = 64;

// One bit for each of the 64 elements from `p` that reaches a magnitude.
template <typename T, typename Lanes>
std::uint64_t reaching(const T* p, Bits<T> least, Lanes present) {
  std::uint64_t bits = 0;
  for (std::size_t part = 0; part < group_elements / lanes; ++part) {
    const auto here = present.part(part);
    const Vec<T> x = load(p + part * lanes, here);
    bits |= std::uint64_t{magnitude_at_least(x, least) & all_bits(here)} << part * lanes;
  }
  return bits;
}

// The lowest `count` of the bits that are set.
inline std::uint64_t lowest_bits(std::uint64_t bits, std::size_t count) {
  std::uint64_t others = bits;
  for (; count != 0 && others != 0; --count) others &= others - 1;
  return bits ^ others;
}

// The number of magnitudes that reach `least`, which is not 0. There are zeros up to a multiple of `lanes`.
template <typename T>
std::size_t count_reaching(const Bits<T>* magnitudes, std::size_t count, Bits<T> least) {
  Bits<T> reached = 0;
  for (std::size_t i = 0; i < count; i += lanes) {
#pragma omp simd reduction(+ : reached)
    for (std::size_t lane = 0; lane < lanes; ++lane) reached += magnitudes[i + lane] >= least;
  }
  return static_cast<std::size_t>(reached);
}

// Finds the largest elements of one block after another, exactly. The sweep over a block marks its candidates: the
// elements that reach a guess, which is a magnitude a little below the one that the block before needed. If these are too
// few or too many, the largest elements of groups give a better guess. The guess has no influence on the choice.
template <typename T>
class BlockSelection {
 public:
  // Stores p of the block from element `begin`, `size` elements, and marks the elements that reach the guess.
  template <typename Correct>
  void sweep_block(const Correct& correct, std::size_t begin, std::size_t size, T* p) {
    count_ = 0;
    sweep<group_elements>(0, size, [&](std::size_t i, auto present) {
      std::uint64_t bits = 0;
      for (std::size_t part = 0; part < group_elements / lanes; ++part) {
        const auto here = present.part(part);
        const std::size_t at = i + part * lanes;
        const Vec<T> x = correct(begin + at, here);
        store(x, p + at, here);
        bits |= std::uint64_t{magnitude_at_least(x, guess_) & all_bits(here)} << part * lanes;
      }
      mark(i, bits);
    });
  }

  // Writes the indices of the `kept` largest of the block's elements, ascending. All NaNs are equal.
  void choose(const T* p, std::size_t size, std::size_t kept, std::uint16_t* indices) {
    if (count_ < kept || count_ > 4 * kept + group_elements) mark_better(p, size, kept);
    if (count_ < kept) mark_zeros(p, size, kept);
    list_candidates(size);
    if (count_ == kept) {
      std::memcpy(indices, candidates_, kept * sizeof(std::uint16_t));
      return guess_below(guess_);
    }
    const Bits<T> limit = limit_of_candidates(p, kept);
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      indices[chosen] = candidates_[i];  // no branch: it would be unpredictable
      chosen += magnitudes_[i] >= limit;
    }
    guess_below(limit);
  }

 private:
  void mark(std::size_t i, std::uint64_t bits) {
    groups_[i / group_elements] = bits;
    count_ += __builtin_popcountll(bits);
  }

  // Makes a guess for this block, and marks the elements that reach it: at least `kept`, if so many are not zero. The
  // elements are in groups of equal size. The guess is the magnitude that the largest elements of `kept` groups reach.
  // With four groups for each element, hardly any group has two of the largest elements.
  void mark_better(const T* p, std::size_t size, std::size_t kept) {
    std::size_t rows = 1;
    while (rows * lanes < 4 * kept && rows * lanes < size) rows *= 2;
    Vec<T> largest[blocktopk_most_block / lanes];
    for (std::size_t row = 0; row < rows; ++row) largest[row] = broadcast(T{0});
    sweep<lanes>(0, size, [&](std::size_t i, auto present) {
      Vec<T>& row = largest[i / lanes % rows];
      row = larger_magnitude(row, load(p + i, present));
    });
    const Bits<T> found = find_bits<T>(kept, kept, [&](Bits<T> least) {
      std::size_t count = 0;
      for (std::size_t row = 0; row < rows; ++row) count += __builtin_popcount(magnitude_at_least(largest[row], least));
      return count;
    });
    guess_ = found < 1 ? 1 : found < infinity_bits<T> ? found : infinity_bits<T>;
    count_ = 0;
    sweep<group_elements>(0, size, [&](std::size_t i, auto present) { mark(i, reaching(p + i, guess_, present)); });
  }

  // Marks the first elements that are zero, where fewer than `kept` are not. The guess is 1.
  void mark_zeros(const T* p, std::size_t size, std::size_t kept) {
    std::size_t left = kept - count_;
    sweep<group_elements>(0, size, [&](std::size_t i, auto present) {
      std::uint64_t& bits = groups_[i / group_elements];
      const std::uint64_t zeros = lowest_bits(reaching(p + i, 0, present) & ~bits, left);
      left -= __builtin_popcountll(zeros);
      bits |= zeros;
    });
    count_ = kept;
  }

  // Writes the indices of the marked elements to candidates_.
  void list_candidates(std::size_t size) {
    constexpr std::uint64_t last = std::uint64_t{1} << (group_elements - 1);
    std::uint16_t* to = candidates_;
    for (std::size_t begin = 0; begin < size; begin += group_elements) {
      std::uint64_t bits = groups_[begin / group_elements];
      std::uint16_t* const end = to + __builtin_popcountll(bits);
      do {  // Four at a time, because a branch for each bit would be unpredictable. `end` drops what is too many.
        for (int i = 0; i < 4; ++i, bits &= bits - 1) {
          to[i] = static_cast<std::uint16_t>(begin + __builtin_ctzll(bits | last));
        }
        to += 4;
      } while (bits != 0);
      to = end;
    }
  }

  // Returns a magnitude that just `kept` candidates reach. Of equal candidates there may be too many: the magnitudes of
  // the last ones become 0.
  Bits<T> limit_of_candidates(const T* p, std::size_t kept) {
    Bits<T> largest = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      magnitudes_[i] = magnitude_bits(p[candidates_[i]]);
      largest = magnitudes_[i] > largest ? magnitudes_[i] : largest;
    }
    for (std::size_t i = count_; i % lanes != 0; ++i) magnitudes_[i] = 0;
    const int bits = largest > guess_ ? 64 - __builtin_clzll(largest - guess_) : 0;
    const Bits<T> limit = guess_ + find_bits<T>(
        kept, kept, [&](Bits<T> above) { return count_reaching<T>(magnitudes_, count_, guess_ + above); }, bits);
    std::size_t reached = count_reaching<T>(magnitudes_, count_, limit);
    for (std::size_t i = count_; reached > kept; --i) {
      if (magnitudes_[i - 1] != limit) continue;
      magnitudes_[i - 1] = 0;
      --reached;
    }
    return limit;
  }

  // Guesses for the next block, given a magnitude that the largest elements of this one reach.
  void guess_below(Bits<T> limit) {
    constexpr Bits<T> an_eighth = Bits<T>{1} << (mantissa_bits<T> - 3);
    const Bits<T> bounded = limit < infinity_bits<T> ? limit : infinity_bits<T>;  // all NaNs reach the guess
    guess_ = bounded > an_eighth ? bounded - an_eighth : 1;
  }

  Bits<T> guess_ = 1;
  std::size_t count_ = 0;                                        // elements that are marked: the candidates
  std::uint64_t groups_[blocktopk_most_block / group_elements];  // their marks
  std::uint16_t candidates_[blocktopk_most_block + 4];           // their indices
  Bits<T> magnitudes_[blocktopk_most_block];
};

}  // namespace
}  // namespace gluon_gc
