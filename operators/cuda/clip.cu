// Clipping by the global l2 norm of many arrays: gluon_gc_clip of core/abi.h.
//
// clip_squares reads every array in one pass, and sums the squares of each in the tree of core/sum_tree.h. clip_factor,
// a single thread, adds these sums in input order, as operators/mxnet/clip.cpp does on the CPU.
#include "core/rules.h"
#include "cuda/half.cuh"
#include "cuda/sums.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
__device__ void sum_squares(const Squares& call) {
  constexpr int ahead = 8;
  const T* const x = static_cast<const T*>(call.x);
  for_each_tile(call.n, [&](Size t) {
    double chain = 0;
#pragma unroll 1
    for (int row = 0; row < rows; row += ahead) {
      const Column column(t, row, call.n);
      T loaded[ahead];
#pragma unroll
      for (int r = 0; r < ahead; ++r) loaded[r] = column.has(r) ? x[column[r]] : T{0};
#pragma unroll
      for (int r = 0; r < ahead; ++r) {
        const double value = to_double(loaded[r]);
        chain += value * value;
      }
    }
    chain = butterfly(chain);
    if (lane() == 0) call.sums[t] = chain;
  });
  if (!last_block(call.ticket)) return;
  const double sum = sum_tiles(call.sums, tiles_of(call.n));
  if (threadIdx.x == 0) *call.sum = sum;
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc;
using namespace gluon_gc::cuda;

GLUON_GC_KERNEL clip_squares(Batch<Squares> calls) {
  const Squares& call = mine(calls);
  switch (call.itemsize) {
    case sizeof(Half): return sum_squares<Half>(call);
    case sizeof(float): return sum_squares<float>(call);
    default: return sum_squares<double>(call);
  }
}

GLUON_GC_KERNEL clip_factor(Batch<Norm> calls) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  const Norm& call = mine(calls);
  double total = 0;
  for (Size i = 0; i < call.n; ++i) total += call.squares[i];
  *call.factor = clipping_factor(call.scale * sqrt(total), call.most);
}
