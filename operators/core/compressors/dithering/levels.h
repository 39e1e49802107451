// The rounding of dithering, and its levels, for sixteen elements at a time. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/dithering/format.h"
#include "core/compressors/norms.h"
#include "core/vec_int.h"

namespace gluon_gc {
namespace {

// The levels that symbols decode to.
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

  T level(std::uint32_t symbol) const { return level_of(symbol, norm, config); }

  // Always inlined, because GCC 12 would otherwise make it a function, and pass vectors on the stack.
  [[gnu::always_inline]] Vec<T> operator()(const Ints& symbols) const {
    if (tabulated) return look_up(table, symbols);
    const Vec<T> share = convert<T>(symbols) / broadcast(static_cast<T>(config.levels));
    return choose(any_set(symbols, ints(-1)), share * broadcast(norm), broadcast(T{0}));
  }

  const T norm;
  const DitheringConfig config;
  const bool tabulated;
  T table[table_size];
  T signed_table[2 * table_size];  // by 2 * symbol + sign
};

// Rounds sixteen elements at random to symbols.
//
// The position of an element between symbols is a fixed-point number with fraction_bits fractional bits:
//
//   symbol = ceil(position - u), u = draw / 2^64
//
// This rounds up if u is less than the fraction of the position. The position of natural is a logarithm that is linear
// between powers of two. Only the highest fraction_bits bits of the draw are subtracted. If they are equal to the
// fraction, `decide` compares all 64 bits.
template <typename T, bool natural>
struct Quantiser {
  Quantiser(T norm, const DitheringConfig& config)
      : Quantiser(PlaceScale<T>(norm, config), fraction_bits_of(config)) {}

  Quantiser(const PlaceScale<T>& places, int fraction_bits)
      : fraction_bits(fraction_bits),
        fraction(ints((1 << fraction_bits) - 1)),
        whole(ints(~((1 << fraction_bits) - 1))),
        one(broadcast(T{1})),
        place_of_one(broadcast(power_of_two<T>(fraction_bits))),
        extreme(places.unit != 1),
        unit(broadcast(places.unit)),
        scale(broadcast(places.scale)),
        top(broadcast(places.top)) {}

  // Returns fixed-point numbers whose integer part is the symbol. `upper` has the upper 32 bits of sixteen draws;
  // draw(i) returns all 64 bits of draw i.
  template <typename Draw>
  Ints operator()(const Vec<T>& p, const Ints& upper, Draw draw) const {
    const Vec<T> y = lesser_magnitude((__builtin_expect(extreme, 0) ? p * unit : p) * scale, top);
    const Ints difference = place(y) - shift_right(upper, 32 - fraction_bits);
    Ints sum = difference + fraction;
    const std::uint32_t undecided = none_set(difference, fraction);
    if (__builtin_expect(undecided != 0, 0)) {
      std::int32_t rounded[lanes];  // in memory only here: then GCC keeps the vectors in registers
      T values[lanes];
      store(sum, rounded);
      store(y, values, All{});
      decide(undecided, values, draw, rounded);
      sum = load_ints(rounded);
    }
    return sum;
  }

  Ints place(const Vec<T>& y) const {
    if constexpr (!natural) return truncate(y);
    const Vec<T> below_one = lesser(y, one) * place_of_one;
    return truncate(below_one) + linear_log2(y, fraction_bits);
  }

  // Rounds the lanes in `undecided` again, with all bits of their draws.
  template <typename Draw>
  __attribute__((noinline)) void decide(std::uint32_t undecided, const T* values, Draw draw,
                                        std::int32_t* rounded) const {
    for (; undecided != 0; undecided &= undecided - 1) {
      const int i = __builtin_ctz(undecided);
      rounded[i] = exact_symbol(values[i], draw(static_cast<std::size_t>(i)), natural, fraction_bits) << fraction_bits;
    }
  }

  const int fraction_bits;
  const Ints fraction, whole;  // masks of the fractional and the integer bits
  const Vec<T> one, place_of_one;
  const bool extreme;
  const Vec<T> unit, scale, top;  // of PlaceScale
};

}  // namespace
}  // namespace gluon_gc
