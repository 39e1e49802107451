// The state of momentum and error feedback, for compressors that keep the residual as such.
#pragma once

namespace gluon_gc {

// What is kept between calls, for n elements. A null `momentum` or `residual` turns it off.
template <typename T>
struct FeedbackState {
  T* momentum;  // n: m = mu m + g, then g = g + mu m (Nesterov, before feedback)
  T mu;
  T* residual;  // n: e, which becomes p - D(p)
  T ratio;      // p = g + ratio e (1: vanilla; previous / current learning rate: corrected, sparse)
};

}  // namespace gluon_gc
