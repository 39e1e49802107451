// How dithering rounds to levels, and what they stand for. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/norms.h"
#include "core/vec_int.h"

namespace gluon_gc {
namespace {

struct DitheringConfig {
  std::uint32_t levels;
  bool natural;
  bool l2;
  bool fixed_width;  // never Elias coding, even if that is smaller
};

// What a symbol takes without its sign.
inline int dithering_symbol_bits(std::size_t levels) {
  int bits = 0;
  for (; levels != 0; levels >>= 1) ++bits;
  return bits;
}

// 2^exponent in T, for exponents of normal numbers.
template <typename T>
inline T power_of_two(int exponent) {
  const Bits<T> bits = bits_of_one<T> + (static_cast<Bits<T>>(exponent) << mantissa_bits<T>);
  T x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// What symbols decode to.
template <typename T>
struct Levels {
  Levels(T norm, const DitheringConfig& config)
      : norm(norm), config(config), tabulated(config.levels < table_size) {
    for (std::uint32_t symbol = 0; tabulated && symbol < table_size; ++symbol) {
      table[symbol] = level(symbol);
      signed_table[2 * symbol] = table[symbol];
      signed_table[2 * symbol + 1] = -table[symbol];
    }
  }

  // A share of the norm, so that nothing overflows and the largest is the norm itself.
  T level(std::uint32_t symbol) const {
    if (symbol == 0) return 0;
    const int below_top = static_cast<int>(symbol) - static_cast<int>(config.levels);
    const T share = config.natural ? power_of_two<T>(below_top)
                                   : static_cast<T>(symbol) / static_cast<T>(config.levels);
    return share * norm;
  }

  // Where it is called often enough, GCC 12 would make it a function, and pass vectors over the stack.
  [[gnu::always_inline]] Vec<T> operator()(const Ints& symbols) const {
    if (tabulated) return look_up(table, symbols);
    const Vec<T> share = convert<T>(symbols) / broadcast(static_cast<T>(config.levels));
    return choose(any_set(symbols, ints(-1)), share * broadcast(norm), broadcast(T{0}));
  }

  const T norm;
  const DitheringConfig config;
  const bool tabulated;
  T table[table_size];
  T signed_table[2 * table_size];  // negated at odd places
};

// Rounds sixteen elements at random to symbols.
//
// The place of an element between symbols is a fixed-point number; subtracting the draw and then rounding up
// gives the upper symbol just if the draw is below the fraction. For natural, that place is the logarithm,
// taken as linear between powers of two. Only the highest bits of both are subtracted: where they are equal,
// all are compared.
template <typename T, bool natural>
struct Quantiser {
  Quantiser(T norm, const DitheringConfig& config)
      : fraction_bits(31 - dithering_symbol_bits(config.levels)),
        fraction(ints((1 << fraction_bits) - 1)),
        whole(ints(~((1 << fraction_bits) - 1))),
        one(broadcast(T{1})),
        place_of_one(broadcast(power_of_two<T>(fraction_bits))),
        extreme(norm < power_of_two<T>(-far) || norm > power_of_two<T>(far)) {
    const T most = natural ? power_of_two<T>(static_cast<int>(config.levels) - 1)
                           : static_cast<T>(config.levels) * power_of_two<T>(fraction_bits);
    const T factor = power_of_two<T>(!extreme ? 0 : norm < 1 ? far : -far);
    unit = broadcast(factor);
    scale = broadcast(norm > 0 && is_finite(norm) ? most / (norm * factor) : T{0});
    top = broadcast(most);
  }

  // The symbols in the bits from fraction_bits on. `upper` has the upper halves of sixteen draws; draw(i)
  // gives one of them whole.
  template <typename Draw>
  Ints operator()(const Vec<T>& p, const Ints& upper, Draw draw) const {
    const Vec<T> y = lesser_magnitude((__builtin_expect(extreme, 0) ? p * unit : p) * scale, top);
    const Ints difference = place(y) - shift_right(upper, 32 - fraction_bits);
    const Ints sum = difference + fraction;
    const std::uint32_t undecided = none_set(difference, fraction);
    return __builtin_expect(undecided == 0, 1) ? sum : decide(undecided, sum, y, draw);
  }

  Ints place(const Vec<T>& y) const {
    if constexpr (!natural) return truncate(y);
    const Vec<T> below_one = lesser(y, one) * place_of_one;
    return truncate(below_one) + linear_log2(y, fraction_bits);
  }

  template <typename Draw>
  __attribute__((noinline)) Ints decide(std::uint32_t undecided, Ints sum, Vec<T> y, Draw draw) const {
    std::int32_t rounded[lanes];
    T values[lanes];
    store(sum, rounded);
    store(y, values, All{});
    for (; undecided != 0; undecided &= undecided - 1) {
      const int i = __builtin_ctz(undecided);
      rounded[i] = exact(values[i], draw(static_cast<std::size_t>(i))) << fraction_bits;
    }
    return load_ints(rounded);
  }

  std::int32_t exact(T y, std::uint64_t draw) const {
    std::int32_t whole = 0;
    T probability = y;
    if constexpr (natural) {
      if (y >= 1) {
        const Bits<T> above = read_bits(y) - bits_of_one<T>;
        const Bits<T> mantissa = above & ((Bits<T>{1} << mantissa_bits<T>) - 1);
        whole = 1 + static_cast<std::int32_t>(above >> mantissa_bits<T>);
        probability = static_cast<T>(mantissa) * power_of_two<T>(-mantissa_bits<T>);
      }
    } else {
      whole = static_cast<std::int32_t>(y) >> fraction_bits;
      probability = y * power_of_two<T>(-fraction_bits) - static_cast<T>(whole);
    }
    const T bound = probability * power_of_two<T>(64);  // below 2^64
    const auto floor = static_cast<std::uint64_t>(bound);
    return whole + (draw < floor || (draw == floor && static_cast<T>(floor) < bound));
  }

  static constexpr int far = sizeof(T) == 4 ? 64 : 512;

  const int fraction_bits;
  const Ints fraction, whole;  // the bits after and before the point
  const Vec<T> one, place_of_one;
  const bool extreme;
  Vec<T> unit;  // keeps the scale normal if the norm is extreme
  Vec<T> scale, top;
};

}  // namespace
}  // namespace gluon_gc
