// Momentum and error feedback, which every compressor's sweep begins with: core/correction.h for one element.
#pragma once

#include "cuda/bytes.cuh"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// What the residual of a call is multiplied with.
template <typename T>
__device__ inline T ratio_of(const Encoding<T>& call) {
  if (!call.corrected) return 1;
  return static_cast<T>(call.ratio_from != nullptr ? read<double>(call.ratio_from) : call.ratio);
}

// What p of `ahead` rows is made of, loaded before any of it is used, so that many loads are under way. Elements
// that are not there are zeros.
template <typename T, int ahead>
struct Loaded {
  __device__ Loaded(const Encoding<T>& call, Size first) {
    load(call.gradient, first, call.n, gradient);
    if (call.momentum != nullptr) load(call.momentum, first, call.n, momentum);
    if (call.memory[0] != nullptr) load(call.memory[0], first, call.n, kept);
  }

  __device__ static void load(const T* from, Size first, Size n, T (&to)[ahead]) {
#pragma unroll
    for (int row = 0; row < ahead; ++row) {
      const Size i = first + row * warp_lanes;
      to[row] = i < n ? from[i] : T{0};
    }
  }

  T gradient[ahead], momentum[ahead] = {}, kept[ahead] = {};
};

// p of element i, whose parts are in a row of `loaded`; its momentum is updated. residual(kept) is the residual
// that memory[0] stands for.
template <typename T, int ahead, typename Residual>
__device__ inline T correct(const Encoding<T>& call, T ratio, const Loaded<T, ahead>& loaded, int row, Size i,
                            Residual residual) {
  T p = loaded.gradient[row] * call.gradient_scale;
  if (call.momentum != nullptr) {
    const T m = call.mu * loaded.momentum[row] + p;
    if (i < call.n) call.momentum[i] = m;
    p = p + call.mu * m;
  }
  if (call.memory[0] != nullptr) p = p + ratio * residual(loaded.kept[row]);
  return p;
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
