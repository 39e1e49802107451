// The state of momentum and error feedback, for compressors that store the residual as an array.
#pragma once

namespace gluon_gc {

// Momentum and residual of n elements. A null pointer turns momentum or feedback off. The first sweep reads the earlier
// arrays and writes all elements of the others. They are the same arrays if the state is updated in place.
template <typename T>
struct FeedbackState {
  const T* earlier_momentum;
  T* momentum;        // n elements: m = mu m + g, then g = g + mu m (Nesterov, before feedback)
  T mu;
  const T* earlier_residual;
  T* residual;        // n elements: p = g + residual_factor e, then e = p - D(payload)
  T residual_factor;  // "vanilla": 1; "corrected", "sparse": previous over current learning rate; times ef_decay
};

}  // namespace gluon_gc
