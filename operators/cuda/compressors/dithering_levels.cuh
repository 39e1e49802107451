// How dithering rounds to levels, and what they stand for: core/compressors/dithering_levels.h for one element.
#pragma once

#include "cuda/bits.cuh"
#include "cuda/compressors/dithering.h"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
constexpr int mantissa_bits = sizeof(T) == 4 ? 23 : 52;
template <typename T>
constexpr Bits<T> bits_of_one = Bits<T>{sizeof(T) == 4 ? 127 : 1023} << mantissa_bits<T>;

// 2^exponent, for exponents of normal numbers.
template <typename T>
__device__ inline T power_of_two(int exponent) {
  return of_bits(bits_of_one<T> + (static_cast<Bits<T>>(exponent) << mantissa_bits<T>));
}

template <typename T>
__device__ inline T lesser(T a, T b) {
  return a < b ? a : b;
}

// What symbols decode to. All lanes of a warp ask together, each for a symbol.
template <typename T>
class Levels {
 public:
  __device__ Levels(T norm, const DitheringConfig& config)
      : norm_(norm), config_(config), of_lane_(level(static_cast<uint32>(lane()))) {}

  __device__ T operator()(uint32 symbol) const {
    return config_.levels < warp_lanes ? __shfl_sync(all_lanes, of_lane_, static_cast<int>(symbol)) : level(symbol);
  }

 private:
  __device__ T level(uint32 symbol) const {
    if (symbol == 0) return 0;
    const int below_top = static_cast<int>(symbol) - static_cast<int>(config_.levels);
    const T share = config_.natural ? power_of_two<T>(below_top)
                                    : static_cast<T>(symbol) / static_cast<T>(config_.levels);
    return share * norm_;
  }

  const T norm_;
  const DitheringConfig& config_;
  const T of_lane_;  // the level of its number
};

// Rounds an element at random to a symbol.
template <typename T>
class Quantiser {
 public:
  __device__ Quantiser(T norm, const DitheringConfig& config) : config_(config) {
    constexpr int far = sizeof(T) == 4 ? 64 : 512;
    top_ = config.natural ? power_of_two<T>(static_cast<int>(config.levels) - 1)
                    : static_cast<T>(config.levels) * power_of_two<T>(fraction_bits());
    unit_ = norm < power_of_two<T>(-far) ? power_of_two<T>(far)
            : norm > power_of_two<T>(far) ? power_of_two<T>(-far) : T{1};
    scale_ = norm > 0 && norm - norm == 0 ? top_ / (norm * unit_) : T{0};
  }

  // The symbol of p. `upper` is the upper half of a draw; draw() gives it whole.
  template <typename Draw>
  __device__ uint32 operator()(T p, uint32 upper, Draw draw) const {
    const int fraction = (1 << fraction_bits()) - 1;
    const T y = lesser(static_cast<T>(fabs(p)) * unit_ * scale_, top_);
    const int difference = place(y) - static_cast<int>(upper >> (32 - fraction_bits()));
    if ((difference & fraction) == 0) return exact(y, draw());
    return static_cast<uint32>(difference + fraction) >> fraction_bits();
  }

 private:
  // Of the place of an element between symbols.
  __device__ int fraction_bits() const { return 32 - config_.planes; }

  __device__ int place(T y) const {
    if (!config_.natural) return static_cast<int>(y);
    const T below_one = lesser(y, T{1}) * power_of_two<T>(fraction_bits());
    const Bits<T> bits = bits_of(y), above = bits > bits_of_one<T> ? bits - bits_of_one<T> : 0;
    const int shift = mantissa_bits<T> - fraction_bits();
    return static_cast<int>(below_one) + static_cast<int>(shift > 0 ? above >> shift : above << -shift);
  }

  __device__ uint32 exact(T y, uint64 draw) const {
    int whole = 0;
    T probability = y;
    if (!config_.natural) {
      whole = static_cast<int>(y) >> fraction_bits();
      probability = y * power_of_two<T>(-fraction_bits()) - static_cast<T>(whole);
    } else if (y >= 1) {
      const Bits<T> above = bits_of(y) - bits_of_one<T>;
      whole = 1 + static_cast<int>(above >> mantissa_bits<T>);
      const Bits<T> mantissa = above & ((Bits<T>{1} << mantissa_bits<T>) - 1);
      probability = static_cast<T>(mantissa) * power_of_two<T>(-mantissa_bits<T>);
    }
    const T bound = probability * power_of_two<T>(64);  // below 2^64
    const uint64 floor = static_cast<uint64>(bound);
    return whole + (draw < floor || (draw == floor && static_cast<T>(floor) < bound));
  }

  const DitheringConfig& config_;
  T top_, unit_, scale_;
};

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
