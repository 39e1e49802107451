// The formulas of momentum, error feedback and clipping, for CPU and CUDA kernels. For kernel sources only (see isa.h).
// V is an element or a vector of elements; both round in the same way.
//
// Nesterov momentum with error feedback: Zheng et al., "Communication-Efficient Distributed Blockwise Momentum SGD with
// Error-Feedback", NeurIPS 2019.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {
namespace {

// Nesterov momentum: m = mu m + g, then g + mu m replaces the gradient g.
template <typename V>
GLUON_GC_HOST_DEVICE V updated_momentum(const V& mu, const V& m, const V& g) {
  return mu * m + g;
}
template <typename V>
GLUON_GC_HOST_DEVICE V with_momentum(const V& mu, const V& m, const V& g) {
  return g + mu * m;
}

// Error feedback: p = g + factor e, with the residual e.
template <typename V>
GLUON_GC_HOST_DEVICE V with_residual(const V& g, const V& factor, const V& e) {
  return g + factor * e;
}

// Momentum m and velocity v of DGC: with nesterov m = mu (m + g), v = v + m + g; else m = mu m + g, v = v + m.
template <bool nesterov, typename V>
GLUON_GC_HOST_DEVICE V dgc_momentum(const V& mu, const V& m, const V& g) {
  return nesterov ? (m + g) * mu : mu * m + g;
}
template <bool nesterov, typename V>
GLUON_GC_HOST_DEVICE V dgc_velocity(const V& v, const V& m, const V& g) {
  return nesterov ? (v + m) + g : v + m;
}

// The l2 norm from a sum of squares. If the sum is finite, the norm is at most the largest T.
template <typename T>
GLUON_GC_HOST_DEVICE T norm_of_squares(double sum) {
  const double norm = square_root(sum);
  return is_finite(norm) && norm > largest_finite<T> ? largest_finite<T> : static_cast<T>(norm);
}

// The factor that clips an l2 norm to `max_norm`. It is 1 if the norm is not finite, so that a NaN or an infinity stays in
// its own gradient.
GLUON_GC_HOST_DEVICE double clipping_factor(double norm, double max_norm) {
  return norm <= max_norm || !is_finite(norm) ? 1 : max_norm / norm;
}

// The same for DGC: the factor is NaN if the norm is NaN or infinite.
template <typename T>
GLUON_GC_HOST_DEVICE T dgc_clipping_factor(T norm, T max_norm) {
  return norm <= max_norm ? T{1} : max_norm / norm + (norm - norm);
}

}  // namespace
}  // namespace gluon_gc
