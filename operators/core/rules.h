// The arithmetic of momentum, error feedback and norms. For kernel sources only (see isa.h), of host and device. V is
// one element or a vector of them: a call rounds in the same way for both.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

// Momentum m after a gradient g, and what replaces the gradient.
template <typename V>
GLUON_GC_HOST_DEVICE V updated_momentum(const V& mu, const V& m, const V& g) {
  return mu * m + g;
}
template <typename V>
GLUON_GC_HOST_DEVICE V with_momentum(const V& mu, const V& m, const V& g) {
  return g + mu * m;
}

// p = g + ratio e, of a residual e.
template <typename V>
GLUON_GC_HOST_DEVICE V with_residual(const V& g, const V& ratio, const V& e) {
  return g + ratio * e;
}

// Momentum m and velocity v of dgc after a gradient g.
template <bool nesterov, typename V>
GLUON_GC_HOST_DEVICE V dgc_momentum(const V& mu, const V& m, const V& g) {
  return nesterov ? (m + g) * mu : mu * m + g;
}
template <bool nesterov, typename V>
GLUON_GC_HOST_DEVICE V dgc_velocity(const V& v, const V& m, const V& g) {
  return nesterov ? (v + m) + g : v + m;
}

// The l2 norm, given the sum of squares: at most the largest T if the sum is finite.
template <typename T>
GLUON_GC_HOST_DEVICE T norm_of_squares(double sum) {
  const double norm = square_root(sum);
  return is_finite(norm) && norm > largest_finite<T> ? largest_finite<T> : static_cast<T>(norm);
}

// The factor that makes an l2 norm at most `max_norm`. NaN where the norm is, and 0 where it is infinite.
GLUON_GC_HOST_DEVICE double clipping_factor(double norm, double max_norm) {
  return norm <= max_norm ? 1 : max_norm / norm;
}

// The same for dgc: NaN if the norm is not finite.
template <typename T>
GLUON_GC_HOST_DEVICE T dgc_clipping_factor(T norm, T max_norm) {
  return norm <= max_norm ? T{1} : max_norm / norm + (norm - norm);
}

}  // namespace
}  // namespace gluon_gc
