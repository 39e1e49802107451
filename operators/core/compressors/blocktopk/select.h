// The choice of blocktopk: the elements of a block with the largest magnitudes. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/blocktopk/format.h"
#include "core/compressors/topk/threshold.h"
#include "core/set_bits.h"
#include "core/vec_gather.h"

namespace gluon_gc {
namespace {

constexpr std::size_t group_elements = 64;

// The end of the groups of `size` elements.
constexpr std::size_t end_of_groups(std::size_t size) {
  return (size + group_elements - 1) / group_elements * group_elements;
}

// One bit for each of the elements of a group: whether it reaches a magnitude.
template <typename T>
std::uint64_t bits_reaching(const T* group, Bits<T> least) {
  std::uint64_t bits = 0;
  for (std::size_t part = 0; part < group_elements; part += lanes) {
    bits |= std::uint64_t{magnitude_at_least(load(group + part, All{}), least)} << part;
  }
  return bits;
}

// The number of elements that reach a magnitude. `count` is a multiple of group_elements.
template <typename T>
std::size_t count_reaching(const T* values, std::size_t count, Bits<T> least) {
  std::size_t reached = 0;
  for (std::size_t i = 0; i < count; i += group_elements) {
    reached += __builtin_popcountll(bits_reaching(values + i, least));
  }
  return reached;
}

// Finds the largest elements of one block after another, exactly. The sweep over a block lists its candidates: the
// elements that reach a guess, which is a magnitude a little below the one that the block before needed. If there are
// too few or too many candidates, the largest elements of groups give a better guess. The guess has no influence on the
// choice.
template <typename T>
class BlockSelection {
 public:
  // Lists the elements of a block that reach the guess. p_at(i, present) returns the sixteen elements from i, and is
  // called for whole groups.
  template <typename At>
  void list_candidates(std::size_t size, At p_at) {
    const Bits<T> guess = guess_;
    std::uint16_t* const indices = indices_;
    std::size_t count = 0;
    sweep<group_elements>(0, size, [=, &count](std::size_t begin, auto present) {
      std::uint64_t bits = 0;
      for (std::size_t part = 0; part < group_elements / lanes; ++part) {
        const auto here = present.part(part);
        const Vec<T> x = p_at(begin + part * lanes, here);
        bits |= std::uint64_t{magnitude_at_least(x, guess) & all_bits(here)} << part * lanes;
      }
      std::uint16_t* to = indices + count;
      count += for_each_four(bits, [&](const int* places) {  // the next group overwrites the surplus
        std::uint64_t four = begin * 0x0001000100010001;
        for (int j = 0; j < 4; ++j) four += static_cast<std::uint64_t>(places[j]) << 16 * j;
        std::memcpy(to, &four, sizeof(four));
        to += 4;
      });
    });
    count_ = count;
  }

  // Lists the `kept` largest elements of the block: their indices, which ascend, and their values. All NaNs are equal.
  // Writes up to surplus_places elements more.
  void choose(const T* p, std::size_t size, std::size_t kept, std::uint16_t* indices, T* values) {
    const bool too_few = count_ < kept, too_many = count_ > 4 * kept + 256;
    if (too_few || too_many) guess_better(p, size, kept);
    if (count_ < kept) add_zeros(p, kept);
    const Bits<T> largest = read_candidates(p);
    const Bits<T> limit = count_ > kept ? limit_of_candidates(kept, largest) : 0;
    list_chosen(limit, indices, values);
    margin_ = too_few ? margin_ + margin_ / 4 : too_many ? margin_ - margin_ / 4 : margin_ - margin_ / 128;
    const Bits<T> least = limit < guess_ ? guess_ : limit < infinity_bits<T> ? limit : infinity_bits<T>;
    guess_ = least > margin_ ? least - margin_ : 1;  // at most infinity, so that all NaNs reach it
  }

 private:
  // Makes a guess for this block, and lists the elements that reach it: at least `kept`, if enough are not zero. The
  // elements are in groups of equal size. The guess is the magnitude that the largest elements of `kept` groups reach.
  // With four groups for each element, hardly any group has two of the largest elements.
  void guess_better(const T* p, std::size_t size, std::size_t kept) {
    std::size_t groups = group_elements;
    while (groups < 4 * kept && groups < size) groups *= 2;
    for (std::size_t i = 0; i < groups; ++i) values_[i] = 0;
    sweep<lanes>(0, size, [&](std::size_t i, auto present) {
      T* const largest = values_ + (i & (groups - 1));
      store(larger_magnitude(load(largest, All{}), load(p + i, present)), largest, All{});
    });
    const auto count = [&](Bits<T> least) { return count_reaching(values_, groups, least); };
    const Bits<T> found = find_bits<T>(kept, kept + kept / 8, count);
    guess_ = found < 1 ? 1 : found < infinity_bits<T> ? found : infinity_bits<T>;
    list_candidates(size, [=](std::size_t i, auto present) { return load(p + i, present); });
  }

  // Adds zeros to the candidates, up to `kept`: all other elements are zero. The first ones are sent.
  void add_zeros(const T* p, std::size_t kept) {
    std::size_t first = 0;  // all elements before this one are sent
    for (std::size_t zeros = kept - count_; zeros != 0; ++first) zeros -= absolute(p[first]) == 0;
    std::memmove(indices_ + first, indices_ + first + count_ - kept, (kept - first) * sizeof(std::uint16_t));
    for (std::size_t i = 0; i < first; ++i) indices_[i] = static_cast<std::uint16_t>(i);
    count_ = kept;
  }

  // Lists the candidates that reach the limit; all if it is 0.
  void list_chosen(Bits<T> limit, std::uint16_t* indices, T* values) const {
    if (limit == 0) {
      std::memcpy(indices, indices_, count_ * sizeof(std::uint16_t));
      std::memcpy(values, values_, count_ * sizeof(T));
      return;
    }
    for (std::size_t i = 0, chosen = 0; i < count_; i += group_elements) {
      std::size_t to = chosen;
      chosen += for_each_four(bits_reaching(values_ + i, limit), [&](const int* places) {
        for (int j = 0; j < 4; ++j, ++to) {
          indices[to] = indices_[i + places[j]];
          values[to] = values_[i + places[j]];
        }
      });
    }
  }

  // Reads the values of the candidates, and appends zeros up to a whole group. Returns the largest magnitude.
  Bits<T> read_candidates(const T* p) {
    const std::size_t end = end_of_groups(count_);
    for (std::size_t i = count_; i < count_ + lanes; ++i) indices_[i] = 0;
    Vec<T> largest = broadcast(T{0});
    sweep<lanes>(0, count_, [&](std::size_t i, auto present) {
      const Vec<T> here = keep(gather(p, indices_ + i), present);
      store(here, values_ + i, All{});
      largest = larger_magnitude(largest, here);
    });
    for (std::size_t i = (count_ + lanes - 1) / lanes * lanes; i < end; i += lanes) {
      store(broadcast(T{0}), values_ + i, All{});
    }
    if (magnitude_at_least(largest, infinity_bits<T> + 1) != 0) {
      for (std::size_t i = 0; i < count_; ++i) values_[i] = with_one_nan(values_[i]);
      return nan_bits<T>;
    }
    T lane[lanes];
    store(largest, lane, All{});
    Bits<T> most = 0;
    for (std::size_t i = 0; i < lanes; ++i) most = bits_of(lane[i]) > most ? bits_of(lane[i]) : most;
    return most;
  }

  // Returns a magnitude that `kept` candidates reach. If too many candidates are equal, their last values become 0.
  Bits<T> limit_of_candidates(std::size_t kept, Bits<T> largest) {
    const Bits<T> most = largest - guess_;
    const auto count_above_guess = [=](Bits<T> above) {
      return above > most ? 0 : count_reaching(values_, count_, guess_ + above);
    };
    int bits = bits_in(most);
    const int usual = bits_in(margin_) + 1;  // the margin is usually below 2^usual, which saves the highest bits
    if (usual < bits && count_above_guess(Bits<T>{1} << usual) < kept) bits = usual;
    const Bits<T> limit = guess_ + find_bits<T>(kept, kept, count_above_guess, bits);
    std::size_t reached = count_reaching(values_, count_, limit);
    for (std::size_t i = count_; reached > kept; --i) {
      if (bits_of(absolute(values_[i - 1])) != limit) continue;
      values_[i - 1] = 0;
      --reached;
    }
    return limit;
  }

  static int bits_in(Bits<T> x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

  Bits<T> guess_ = infinity_bits<T>;
  Bits<T> margin_ = Bits<T>{1} << (mantissa_bits<T> - 4);  // how far the guess is below the last block's limit
  std::size_t count_;                                    // candidates
  std::uint16_t indices_[blocktopk_most_block + lanes];  // of the candidates
  T values_[blocktopk_most_block];                       // of the candidates
};

}  // namespace
}  // namespace gluon_gc
