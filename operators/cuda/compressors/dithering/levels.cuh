// How dithering rounds elements to symbols, and the levels that symbols decode to: core/compressors/dithering/levels.h
// for one element.
#pragma once

#include "core/host_device.h"
#include "cuda/compressors/dithering/dithering.h"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
__device__ inline T lesser(T a, T b) {
  return a < b ? a : b;
}

// The levels that symbols decode to. All lanes of a warp must call it together, each for its own symbol.
template <typename T>
class Levels {
 public:
  __device__ Levels(T norm, const DitheringConfig& config)
      : norm_(norm), config_(config), of_lane_(level(static_cast<uint32>(lane()))) {}

  __device__ T operator()(uint32 symbol) const {
    return config_.levels < warp_lanes ? __shfl_sync(all_lanes, of_lane_, static_cast<int>(symbol)) : level(symbol);
  }

 private:
  __device__ T level(uint32 symbol) const { return level_of(symbol, norm_, config_); }

  const T norm_;
  const DitheringConfig& config_;
  const T of_lane_;  // the level of symbol lane()
};

// Rounds an element at random to a symbol.
template <typename T>
class Quantiser {
 public:
  __device__ Quantiser(T norm, const DitheringConfig& config) : config_(config), places_(norm, config) {}

  // The symbol of p. `upper` is the upper half of a draw. draw() returns the whole draw, for the rare cases that the
  // upper half does not decide.
  template <typename Draw>
  __device__ uint32 operator()(T p, uint32 upper, Draw draw) const {
    const int fraction = (1 << fraction_bits()) - 1;
    const T y = lesser(static_cast<T>(fabs(p)) * places_.unit * places_.scale, places_.top);
    const int difference = place(y) - static_cast<int>(upper >> (32 - fraction_bits()));
    if ((difference & fraction) == 0) return exact_symbol(y, draw(), config_.natural, fraction_bits());
    return static_cast<uint32>(difference + fraction) >> fraction_bits();
  }

 private:
  __device__ int fraction_bits() const { return fraction_bits_of(config_); }

  __device__ int place(T y) const {
    if (!config_.natural) return static_cast<int>(y);
    const T below_one = lesser(y, T{1}) * power_of_two<T>(fraction_bits());
    const Bits<T> bits = bits_of(y), above = bits > bits_of_one<T> ? bits - bits_of_one<T> : 0;
    const int shift = mantissa_bits<T> - fraction_bits();
    return static_cast<int>(below_one) + static_cast<int>(shift > 0 ? above >> shift : above << -shift);
  }

  const DitheringConfig& config_;
  const PlaceScale<T> places_;
};

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
