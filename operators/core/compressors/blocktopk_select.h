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

// Finds the largest elements of one block after another, exactly. The search starts from a guess: a magnitude a little
// below the one that the block before needed. If it suits the block, only the few elements that reach it are compared
// further. Otherwise the bits of a better guess are searched first. The guess has no influence on the choice.
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
    std::size_t equal;
    const Bits<T> limit = limit_of(p, size, kept, equal);
    const bool only_nans = limit > infinity_bits<T>;
    const Bits<T> above = only_nans ? Bits<T>{1} << sign_shift<T> : limit + 1;
    const Bits<T> least = only_nans ? infinity_bits<T> + 1 : limit;
    if (only_nans) equal = kept;
    sweep<group_elements>(0, size, [&](std::size_t i, auto present) {
      std::uint64_t bits = reaching(p + i, above, present);
      if (equal != 0) {
        const std::uint64_t ties = lowest_bits(reaching(p + i, least, present) & ~bits, equal);
        equal -= __builtin_popcountll(ties);
        bits |= ties;
      }
      for (; bits != 0; bits &= bits - 1) *indices++ = static_cast<std::uint16_t>(i + __builtin_ctzll(bits));
    });
    constexpr Bits<T> an_eighth = Bits<T>{1} << (mantissa_bits<T> - 3);
    guess_ = limit > an_eighth ? limit - an_eighth : 1;
  }

 private:
  // Returns a magnitude. All elements above it are sent, and the first `equal` elements with exactly this magnitude.
  Bits<T> limit_of(const T* p, std::size_t size, std::size_t kept, std::size_t& equal) {
    const auto in_block = [=](Bits<T> least) {
      std::size_t count = 0;
      sweep<group_elements>(0, size, [=, &count](std::size_t i, auto present) {
        count += __builtin_popcountll(reaching(p + i, least, present));
      });
      return count;
    };
    const auto in_candidates = [this](Bits<T> least) {
      Bits<T> count = 0;
      for (std::size_t i = 0; i < count_; ++i) count += candidates_[i] >= least;
      return static_cast<std::size_t>(count);
    };
    const std::size_t most = 2 * kept + group_elements;
    if (count_ < kept || count_ > most) {
      guess_ = in_block(1) < kept ? 0 : find_bits<T>(kept, most, in_block);
      count_ = 0;
      sweep<group_elements>(0, size, [&](std::size_t i, auto present) { mark(i, reaching(p + i, guess_, present)); });
    }
    if (count_ > most) {  // many elements have the same magnitude, which is the guess
      equal = kept - in_block(guess_ + 1);
      return guess_;
    }
    std::size_t copied = 0;
    for (std::size_t group = 0; copied < count_; ++group) {
      for (std::uint64_t bits = groups_[group]; bits != 0; bits &= bits - 1) {
        candidates_[copied++] = bits_of(absolute(p[group * group_elements + __builtin_ctzll(bits)]));
      }
    }
    const Bits<T> found = find_bits<T>(kept, kept, in_candidates);
    const Bits<T> limit = found < guess_ ? guess_ : found;  // below the guess, elements that are no candidates reach it
    equal = kept - in_candidates(limit + 1);
    return limit;
  }

  void mark(std::size_t i, std::uint64_t bits) {
    groups_[i / group_elements] = bits;
    count_ += __builtin_popcountll(bits);
  }

  Bits<T> guess_ = 1;
  std::size_t count_ = 0;                                         // elements that reach the guess
  std::uint64_t groups_[blocktopk_most_block / group_elements];  // which elements these are
  Bits<T> candidates_[blocktopk_most_block];                      // their magnitudes
};

}  // namespace
}  // namespace gluon_gc
