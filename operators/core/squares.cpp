#include "core/squares.h"

#include "core/sums.h"

namespace gluon_gc {
namespace {

template <typename T>
double sum_of(const T* x, std::size_t n, double* sums, int threads) {
  return sum_over<Squares<T>>(n, sums, threads, [=](auto& sum, std::size_t i, auto present) {
    prefetch_ahead(x + i);
    prefetch_ahead(x + i + lanes);
    const Vec<T> low = load(x + i, present.part(0)), high = load(x + i + lanes, present.part(1));
    sum.add(keep(low, present.part(0)), keep(high, present.part(1)));
  });
}

}  // namespace

template <Isa isa>
double SquaresKernels<isa>::sum(const float* x, std::size_t n, double* sums, int threads) {
  return sum_of(x, n, sums, threads);
}

template <Isa isa>
double SquaresKernels<isa>::sum(const double* x, std::size_t n, double* sums, int threads) {
  return sum_of(x, n, sums, threads);
}

template struct SquaresKernels<this_isa>;

}  // namespace gluon_gc
