// Momentum and error feedback, fused into the sweep of a compressor: they compute p, the elements to encode, sixteen at
// a time. rules.h has the formulas and their source. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/feedback.h"
#include "core/rules.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

// A residual that is stored as an array; null without feedback. A compressor that stores it in another form (onebit)
// has its own class with these members.
template <typename T>
struct StoredResidual {
  explicit operator bool() const { return e != nullptr; }
  const T* address(std::size_t i) const { return e + i; }  // of what a call reads

  // The residual of the sixteen elements from i.
  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    return load(e + i, present);
  }

  const T* e;
};

// Writes an array of the state. If it is apart from the earlier array, stores go past the caches: a plain store would
// read each line of memory that it then replaces.
template <typename T>
struct StateWriter {
  StateWriter(const T* earlier, T* to)
      : to(to), past_caches(to != earlier && reinterpret_cast<std::uintptr_t>(to) % sizeof(Vec<T>) == 0) {}

  template <typename Lanes>
  void operator()(const Vec<T>& v, std::size_t i, Lanes present) const {
    past_caches ? stream(v, to + i, present) : store(v, to + i, present);
  }

  T* const to;
  const bool past_caches;
};

// Computes p:  g = gradient * gradient_scale;  m = mu m + g,  g = g + mu m;  p = g + residual_factor e.
template <typename T, bool has_momentum, bool with_feedback, typename Residual>
struct Correction {
  static constexpr bool has_residual = with_feedback;

  Correction(const T* gradient, T gradient_scale, const FeedbackState<T>& state, const Residual& residual)
      : gradient(gradient),
        gradient_scale(gradient_scale),
        mu(state.mu),
        residual_factor(state.residual_factor),
        earlier_momentum(state.earlier_momentum),
        momentum(state.earlier_momentum, state.momentum),
        residual(residual) {}

  // Returns p of the sixteen elements from i, and writes their momentum.
  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    prefetch_ahead(gradient + i);
    if constexpr (has_momentum) prefetch_ahead(earlier_momentum + i);
    if constexpr (has_residual) prefetch_ahead(residual.address(i));
    return at<true>(i, present);
  }

  // The same, in a loop over a tile (vec.h).
  template <typename Lanes>
  Vec<T> of_tile(std::size_t i, Lanes present) const {
    prefetch_tiles_ahead(gradient + i);
    if constexpr (has_momentum) prefetch_tiles_ahead(earlier_momentum + i);
    if constexpr (has_residual) prefetch_tiles_ahead(residual.address(i));
    return at<true>(i, present);
  }

  // Returns the same p, but writes nothing. For sampling before the sweep.
  template <typename Lanes>
  Vec<T> preview(std::size_t i, Lanes present) const {
    return at<false>(i, present);
  }

  template <bool update, typename Lanes>
  Vec<T> at(std::size_t i, Lanes present) const {
    Vec<T> p = load(gradient + i, present) * broadcast(gradient_scale);
    if constexpr (has_momentum) {
      const Vec<T> m = updated_momentum(broadcast(mu), load(earlier_momentum + i, present), p);
      if constexpr (update) momentum(m, i, present);
      p = with_momentum(broadcast(mu), m, p);
    }
    if constexpr (has_residual) p = with_residual(p, broadcast(residual_factor), residual(i, present));
    return p;
  }

  const T* const gradient;
  const T gradient_scale, mu, residual_factor;  // broadcast where they are used: a vector may take two registers
  const T* const earlier_momentum;
  const StateWriter<T> momentum;
  const Residual residual;
};

// Returns sweep(correction), where the type of the Correction is specialised for the momentum and the feedback of the
// state. It reads the residual through `residual`, and not from the state.
template <typename T, typename Residual, typename Sweep>
auto with_correction(const T* gradient, T gradient_scale, const FeedbackState<T>& state,
                     const Residual& residual, Sweep sweep) {
  const auto run = [&](auto has_momentum, auto has_residual) {
    return sweep(Correction<T, has_momentum, has_residual, Residual>(gradient, gradient_scale, state, residual));
  };
  using Yes = std::true_type;
  using No = std::false_type;
  if (state.momentum) return residual ? run(Yes(), Yes()) : run(Yes(), No());
  return residual ? run(No(), Yes()) : run(No(), No());
}

// Reads p again after a first sweep: from the residual array, where the sweep stored p; without feedback it computes p
// again.
template <typename T>
struct Corrected {
  static constexpr bool has_residual = false;

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

  // p of the sixteen elements from i.
  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    if (residual) return load(residual + i, present);
    const Vec<T> g = load(gradient + i, present) * broadcast(gradient_scale);
    return momentum ? with_momentum(broadcast(mu), load(momentum + i, present), g) : g;
  }

  // Always inlined, because GCC 12 removes calls of a function that does nothing but prefetch.
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
