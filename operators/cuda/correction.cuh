// Momentum and error feedback, the first step of every compressor's sweep: core/correction.h for one element.
//
//   g = gradient * scale;  momentum: m = mu m + g, g = g + mu m;  feedback: p = g + residual_factor e
//
// Error feedback: Seide et al. 2014, Karimireddy et al. 2019. Nesterov momentum before compression: Zheng et al. 2019.
#pragma once

#include "core/rules.h"
#include "cuda/bytes.cuh"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The scale of the gradient.
template <typename T>
__device__ inline T scale_of(const Encoding<T>& call) {
  return static_cast<T>(call.scale_by != nullptr ? call.scale * *call.scale_by : call.scale);
}

// The factor of the residual: its decay, times the ratio of learning rates.
template <typename T>
__device__ inline T residual_factor_of(const Encoding<T>& call) {
  const double ratio = call.ratio_from != nullptr ? read<double>(call.ratio_from) : call.ratio;
  return static_cast<T>(ratio * call.decay);
}

// The inputs of p in rows_ahead rows of a column, all loaded before any is used. The gradient is scaled. Elements past
// the end are 0.
template <typename T>
struct Loaded {
  __device__ Loaded(const Encoding<T>& call, const Column& column) {
    load(call.gradient, column, gradient);
    if (call.momentum != nullptr) load(call.earlier_momentum, column, momentum);
    if (call.memory[0] != nullptr) load(call.earlier_memory[0], column, kept);
    const T scale = scale_of(call);
#pragma unroll
    for (int row = 0; row < rows_ahead<T>; ++row) gradient[row] *= scale;
  }

  __device__ static void load(const T* from, const Column& column, T (&to)[rows_ahead<T>]) {
#pragma unroll
    for (int row = 0; row < rows_ahead<T>; ++row) to[row] = column.has(row) ? from[column[row]] : T{0};
  }

  T gradient[rows_ahead<T>], momentum[rows_ahead<T>] = {}, kept[rows_ahead<T>] = {};
};

// Returns p of a row of a loaded column, and writes its momentum. residual(kept) makes the residual from
// earlier_memory[0].
template <typename T, typename Residual>
__device__ inline T correct(const Encoding<T>& call, T residual_factor, const Loaded<T>& loaded, const Column& column,
                            int row, Residual residual) {
  T p = loaded.gradient[row];
  if (call.momentum != nullptr) {
    const T m = updated_momentum(call.mu, loaded.momentum[row], p);
    if (column.has(row)) call.momentum[column[row]] = m;
    p = with_momentum(call.mu, m, p);
  }
  return call.memory[0] != nullptr ? with_residual(p, residual_factor, residual(loaded.kept[row])) : p;
}

// p of element i, before the sweep. Writes nothing.
template <typename T>
__device__ inline T preview(const Encoding<T>& call, T scale, T residual_factor, Size i) {
  T p = call.gradient[i] * scale;
  if (call.momentum != nullptr) p = with_momentum(call.mu, updated_momentum(call.mu, call.earlier_momentum[i], p), p);
  return call.memory[0] != nullptr ? with_residual(p, residual_factor, call.earlier_memory[0][i]) : p;
}

// p of element i, after a sweep that stored p in memory[0].
template <typename T>
__device__ inline T corrected(const Encoding<T>& call, T scale, Size i) {
  if (call.memory[0] != nullptr) return call.memory[0][i];
  const T g = call.gradient[i] * scale;
  return call.momentum != nullptr ? with_momentum(call.mu, call.momentum[i], g) : g;
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
