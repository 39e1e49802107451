// Momentum and velocity of dgc, fused into its sweep. For kernel sources only (see isa.h).
#pragma once

#include <type_traits>

#include "core/codec.h"
#include "core/compressors/dgc/config.h"
#include "core/compressors/norms.h"
#include "core/correction.h"

namespace gluon_gc {
namespace {

enum class Momentum { none, classic, nesterov };

// Computes v. The counterpart of Correction (correction.h) for dgc.
template <typename T, Momentum kind>
struct Compensation {
  static constexpr bool has_residual = true;  // v is stored

  // Returns v of the sixteen elements from i, and writes their momentum.
  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    prefetch_ahead(gradient + i);
    if constexpr (kind != Momentum::none) prefetch_ahead(earlier_momentum + i);
    prefetch_ahead(earlier_velocity + i);
    return at<true>(i, present);
  }

  // Returns the same v, but writes nothing. For sampling before the sweep.
  template <typename Lanes>
  Vec<T> preview(std::size_t i, Lanes present) const {
    return at<false>(i, present);
  }

  template <bool update, typename Lanes>
  Vec<T> at(std::size_t i, Lanes present) const {
    const Vec<T> g = load(gradient + i, present) * scale * shortening;
    const Vec<T> v = load(earlier_velocity + i, present);
    if constexpr (kind == Momentum::none) {
      return v + g;
    } else {
      constexpr bool nesterov = kind == Momentum::nesterov;
      const Vec<T> m = dgc_momentum<nesterov>(mu, load(earlier_momentum + i, present), g);
      if constexpr (update) momentum(m, i, present);
      return dgc_velocity<nesterov>(v, m, g);
    }
  }

  const T* const gradient;
  const Vec<T> scale, shortening, mu;
  const T* const earlier_momentum;
  const StateWriter<T> momentum;
  const T* const earlier_velocity;
};

// The factor that clips the l2 norm of g to max_norm. NaN if the norm is NaN or infinite.
template <typename T>
T clipping(const Encoding<T>& call, std::size_t n, T max_norm, double* sums) {
  using Scaled = Correction<T, false, false, StoredResidual<T>>;
  const Scaled scaled(call.gradient, call.gradient_scale, {}, {});
  return dgc_clipping_factor(l2_norm(scaled, n, static_cast<T*>(nullptr), sums, call.threads), max_norm);
}

// Returns sweep(compensation), where the type of the Compensation is specialised for the kind of momentum.
template <typename T, typename Sweep>
auto with_compensation(const Encoding<T>& call, std::size_t n, const DgcConfig& config, double* sums, Sweep sweep) {
  const bool clips = config.max_norm > 0;
  const T shortening = clips ? clipping(call, n, static_cast<T>(config.max_norm), sums) : T{1};
  const Vec<T> scale = broadcast(call.gradient_scale), shorter = broadcast(shortening), mu = broadcast(call.mu);
  const auto run = [=](auto kind) {
    const StateWriter<T> momentum(call.earlier_momentum, call.momentum);
    return sweep(Compensation<T, kind>{call.gradient, scale, shorter, mu, call.earlier_momentum, momentum,
                                       call.earlier_memory[0]});
  };
  if (!call.momentum) return run(std::integral_constant<Momentum, Momentum::none>());
  if (!config.nesterov) return run(std::integral_constant<Momentum, Momentum::classic>());
  return run(std::integral_constant<Momentum, Momentum::nesterov>());
}

}  // namespace
}  // namespace gluon_gc
