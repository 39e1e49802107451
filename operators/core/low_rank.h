// Products of matrices of low rank, for PowerSGD.
#pragma once

#include <cstddef>

#include "core/isa.h"

namespace gluon_gc {

// A matrix M (rows x columns) and factors of the given rank. All are row-major. A left factor P is stored as
// rank x rows, a right factor Q as rank x columns: the product is transposed(P) Q.
struct LowRank {
  std::size_t rows, columns, rank;
};

// The kernels of one instruction set. Their results do not depend on `threads` and on the instruction set.
template <Isa isa, typename T>
struct LowRankKernels {
  // M = (M - transposed(P) Q) + G, and left = next transposed(M). One pass: reads 2 matrices and writes 1.
  static void accumulate(LowRank shape, const T* g, const T* p, const T* q, const T* next, T* m, T* left, int threads);
  // right = P M. One pass: reads 1 matrix.
  static void project(LowRank shape, const T* p, const T* m, T* right, int threads);
  // out = transposed(P) Q. One pass: writes 1 matrix.
  static void multiply(LowRank shape, const T* p, const T* q, T* out, int threads);
};

extern template struct LowRankKernels<Isa::scalar, float>;
extern template struct LowRankKernels<Isa::avx2, float>;
extern template struct LowRankKernels<Isa::avx512, float>;
extern template struct LowRankKernels<Isa::scalar, double>;
extern template struct LowRankKernels<Isa::avx2, double>;
extern template struct LowRankKernels<Isa::avx512, double>;

// Makes the `count` rows of x, which have n elements, orthonormal: modified Gram-Schmidt in float64. A row that depends
// on the rows before it becomes zeros. A NaN or an infinity gives NaNs.
template <typename T>
void orthonormalise(T* x, std::size_t count, std::size_t n);

}  // namespace gluon_gc
