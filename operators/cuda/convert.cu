// Converts arrays from one dtype to another, many in one launch: gluon_gc_convert of core/abi.h.
//
// Reads `from` and writes `to`, one pass. The product is computed as in operators/mxnet/plain.cpp: in float if the
// result is float16 or if both are float, else in double.
#include "cuda/grid.cuh"
#include "cuda/half.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename From, typename To>
__device__ inline To multiplied(From x, double scale) {
  if constexpr (sizeof(To) == sizeof(Half) || (sizeof(From) == sizeof(float) && sizeof(To) == sizeof(float))) {
    return cast<To>(product(to_float(x), to_float(scale)));
  } else {
    return cast<To>(product(to_double(x), scale));
  }
}

template <typename From, typename To>
__device__ void convert_all(const Conversion& call) {
  constexpr int ahead = 8;
  const From* const from = static_cast<const From*>(call.from);
  To* const to = static_cast<To*>(call.to);
  const double scale = call.factor != nullptr ? call.scale * *call.factor : call.scale;
  bool finite = true;
  for_each_tile(call.n, [&](Size t) {
#pragma unroll 1
    for (int row = 0; row < rows; row += ahead) {
      const Column column(t, row, call.n);
      From x[ahead];
#pragma unroll
      for (int r = 0; r < ahead; ++r) x[r] = column.has(r) ? from[column[r]] : From{0};
#pragma unroll
      for (int r = 0; r < ahead; ++r) {
        finite = finite && is_finite(x[r]);
        if (column.has(r)) to[column[r]] = multiplied<From, To>(x[r], scale);
      }
    }
  });
  if (call.nonfinite != nullptr && !finite) *call.nonfinite = 1;
}

template <typename From>
__device__ void convert_from(const Conversion& call) {
  switch (call.to_itemsize) {
    case sizeof(Half): return convert_all<From, Half>(call);
    case sizeof(float): return convert_all<From, float>(call);
    default: return convert_all<From, double>(call);
  }
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc::cuda;

GLUON_GC_KERNEL convert(Batch<Conversion> calls) {
  const Conversion& call = mine(calls);
  switch (call.from_itemsize) {
    case sizeof(Half): return convert_from<Half>(call);
    case sizeof(float): return convert_from<float>(call);
    default: return convert_from<double>(call);
  }
}
