// Checks tensors for NaNs and infinities.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace gluon_gc {

// The kernels of one instruction set, which the function below calls.
template <Isa isa>
struct FiniteKernels {
  static bool all(const std::uint16_t* x, std::size_t n, int threads);
  static bool all(const float* x, std::size_t n, int threads);
  static bool all(const double* x, std::size_t n, int threads);
};

extern template struct FiniteKernels<Isa::scalar>;
extern template struct FiniteKernels<Isa::avx2>;
extern template struct FiniteKernels<Isa::avx512>;

// Whether no element of x is NaN or infinite. T is float, double, or std::uint16_t for the bits of float16. One pass:
// reads sizeof(T) bytes an element.
template <typename T>
bool values_finite(const T* x, std::size_t n, int threads = 1, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) { return FiniteKernels<chosen>::all(x, n, threads); });
}

}  // namespace gluon_gc
