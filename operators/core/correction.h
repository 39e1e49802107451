// Momentum and error feedback, which every compressor's sweep begins with. For kernel sources only (see
// isa.h).
#pragma once

#include <cstddef>

#include "core/feedback.h"
#include "core/rules.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

// What becomes of the residual e; `scaled` is apart since the usual ratio is 1.
enum class Feedback { none, plain, scaled };

// A residual that is kept as such; null if there is no feedback. A compressor that keeps it in another form
// has its own class with these members.
template <typename T>
struct StoredResidual {
  explicit operator bool() const { return e != nullptr; }
  void prefetch(std::size_t i) const { prefetch_ahead(e + i); }

  // Sixteen elements from i.
  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    return load(e + i, present);
  }

  const T* e;
};

// p of sixteen elements: g = gradient * gradient_scale; m = mu m + g and g = g + mu m; p = g + ratio e.
template <typename T, bool has_momentum, Feedback kind, typename Residual>
struct Correction {
  static constexpr Feedback feedback = kind;

  Correction(const T* gradient, T gradient_scale, const FeedbackState<T>& state, const Residual& residual)
      : gradient(gradient),
        gradient_scale(broadcast(gradient_scale)),
        mu(broadcast(state.mu)),
        ratio(broadcast(state.ratio)),
        momentum(state.momentum),
        residual(residual) {}

  // p of the elements from i. Their momentum is updated.
  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    prefetch_ahead(gradient + i);
    if constexpr (has_momentum) prefetch_ahead(momentum + i);
    if constexpr (feedback != Feedback::none) residual.prefetch(i);
    return at<true>(i, present);
  }

  // The same p beforehand. Writes nothing.
  template <typename Lanes>
  Vec<T> preview(std::size_t i, Lanes present) const {
    return at<false>(i, present);
  }

  template <bool update, typename Lanes>
  Vec<T> at(std::size_t i, Lanes present) const {
    Vec<T> p = load(gradient + i, present) * gradient_scale;
    if constexpr (has_momentum) {
      const Vec<T> m = updated_momentum(mu, load(momentum + i, present), p);
      if constexpr (update) store(m, momentum + i, present);
      p = with_momentum(mu, m, p);
    }
    if constexpr (feedback == Feedback::plain) p = p + residual(i, present);
    if constexpr (feedback == Feedback::scaled) p = with_residual(p, ratio, residual(i, present));
    return p;
  }

  const T* const gradient;
  const Vec<T> gradient_scale, mu, ratio;
  T* const momentum;
  const Residual residual;
};

template <bool has_momentum, typename T, typename Residual, typename Sweep>
auto with_feedback(const T* gradient, T gradient_scale, const FeedbackState<T>& state,
                   const Residual& residual, Sweep sweep) {
  using Without = Correction<T, has_momentum, Feedback::none, Residual>;
  using Plain = Correction<T, has_momentum, Feedback::plain, Residual>;
  using Scaled = Correction<T, has_momentum, Feedback::scaled, Residual>;
  if (!residual) return sweep(Without(gradient, gradient_scale, state, residual));
  if (state.ratio == T{1}) return sweep(Plain(gradient, gradient_scale, state, residual));
  return sweep(Scaled(gradient, gradient_scale, state, residual));
}

// Returns sweep(correction), with the Correction that does just what is asked for. The residual is read
// through `residual`, not from the state.
template <typename T, typename Residual, typename Sweep>
auto with_correction(const T* gradient, T gradient_scale, const FeedbackState<T>& state,
                     const Residual& residual, Sweep sweep) {
  return state.momentum ? with_feedback<true>(gradient, gradient_scale, state, residual, sweep)
                        : with_feedback<false>(gradient, gradient_scale, state, residual, sweep);
}

// p once more, after a sweep that stored it where the residual was.
template <typename T>
struct Corrected {
  static constexpr Feedback feedback = Feedback::none;

  Corrected(const T* gradient, T gradient_scale, const FeedbackState<T>& state)
      : gradient(gradient),
        gradient_scale(gradient_scale),
        mu(state.mu),
        momentum(state.momentum),
        residual(state.residual) {}

  T operator[](std::size_t i) const {
    if (residual) return residual[i];
    const T g = gradient[i] * gradient_scale;
    return momentum ? with_momentum(mu, momentum[i], g) : g;
  }

  // Sixteen elements from i.
  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    if (residual) return load(residual + i, present);
    const Vec<T> g = load(gradient + i, present) * broadcast(gradient_scale);
    return momentum ? with_momentum(broadcast(mu), load(momentum + i, present), g) : g;
  }

  // GCC 12 takes a function that only prefetches for one without effect, and leaves out calls of it.
  [[gnu::always_inline]] void prefetch(std::size_t i) const {
    __builtin_prefetch(residual ? residual + i : gradient + i);
    if (!residual && momentum) __builtin_prefetch(momentum + i);
  }

  const T* const gradient;
  const T gradient_scale, mu;
  const T* const momentum;
  const T* const residual;
};

}  // namespace
}  // namespace gluon_gc
