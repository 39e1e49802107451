// Sums of squares, for the norm over all gradients.
#pragma once

#include <cstddef>

#include "core/isa.h"
#include "core/sum_tree.h"

namespace gluon_gc {

// The kernels of one instruction set, which the function below calls.
template <Isa isa>
struct SquaresKernels {
  static double sum(const float* x, std::size_t n, double* sums, int threads);
  static double sum(const double* x, std::size_t n, double* sums, int threads);
};

extern template struct SquaresKernels<Isa::scalar>;
extern template struct SquaresKernels<Isa::avx2>;
extern template struct SquaresKernels<Isa::avx512>;

// The sum of x^2 in float64, in the order of sum_tree.h. `sums` is scratch memory of sums_bytes(n). One pass: reads
// sizeof(T) bytes an element.
template <typename T>
double sum_of_squares(const T* x, std::size_t n, double* sums, int threads = 1, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) { return SquaresKernels<chosen>::sum(x, n, sums, threads); });
}

}  // namespace gluon_gc
