// Momentum and velocity of dgc, and its threshold, which is estimated from a sample and then adapted.
#pragma once

#include "cuda/compressors/dgc/plan.h"
#include "cuda/compressors/topk/candidates.cuh"
#include "cuda/stream.cuh"
#include "cuda/sums.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The workspace of a call.
template <typename T>
struct DgcMemory : SearchMemory<T> {
  __device__ explicit DgcMemory(const DgcEncoding<T>& call) : SearchMemory<T>(call.workspace, call.n, call.search) {
    const DgcLayout<T> layout(call.n, call.search, call.plan);
    char* const memory = static_cast<char*>(call.workspace);
    dgc = reinterpret_cast<DgcState<T>*>(memory + layout.state);
    sums = reinterpret_cast<double*>(memory + layout.sums);
    sample = reinterpret_cast<T*>(memory + layout.sample);
  }

  DgcState<T>* dgc;
  double* sums;
  T* sample;
};

// Computes the clipping factor of the gradient.
template <typename T>
__device__ void clip(const DgcEncoding<T>& call) {
  const DgcMemory<T> memory(call);
  const T scale = scale_of(call);
  for_each_tile(call.n, [&](Size t) {
    double squares = 0;
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, call.n);
      T gradient[rows_ahead<T>];
      Loaded<T>::load(call.gradient, column, gradient);
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) {
        const double g = column.has(r) ? gradient[r] * scale : T{0};
        squares += g * g;
      }
    }
    squares = butterfly(squares);
    if (lane() == 0) memory.sums[t] = squares;
  });
  if (!last_block(call.ticket)) return;
  const double sum = sum_tiles(memory.sums, tiles_of(call.n));
  if (threadIdx.x == 0) {
    memory.dgc->shortening = dgc_clipping_factor(norm_of_squares<T>(sum), static_cast<T>(call.plan.max_norm));
  }
}

// Returns the new velocity of an element, and updates its momentum. The gradient is scaled. `momentum` is not used if
// the call has none.
template <typename T>
__device__ inline T compensate(const DgcEncoding<T>& call, T shortening, T gradient, T& momentum, T velocity) {
  const T g = gradient * shortening;
  if (call.momentum == nullptr) return velocity + g;
  momentum = call.plan.nesterov ? dgc_momentum<true>(call.mu, momentum, g) : dgc_momentum<false>(call.mu, momentum, g);
  return call.plan.nesterov ? dgc_velocity<true>(velocity, momentum, g) : dgc_velocity<false>(velocity, momentum, g);
}

template <typename T>
__device__ inline T shortening_of(const DgcEncoding<T>& call, const DgcMemory<T>& memory) {
  return call.plan.max_norm > 0 ? memory.dgc->shortening : T{1};
}

// Copies the drawn elements of the velocity, after the sweep.
template <typename T>
__device__ void draw(const DgcEncoding<T>& call) {
  constexpr int ahead = 4;
  const DgcMemory<T> memory(call);
  if (call.plan.sample != DgcSample::drawn) return;
  for_each_draw<ahead>(call.stream, call.n, call.plan.samples, [&](Size first, const Size (&indices)[ahead]) {
    T v[ahead];
#pragma unroll
    for (int j = 0; j < ahead; ++j) v[j] = first + j < call.plan.samples ? call.memory[0][indices[j]] : T{0};
#pragma unroll
    for (int j = 0; j < ahead; ++j) {
      if (first + j < call.plan.samples) memory.sample[first + j] = v[j];
    }
  });
}

// Finds a digit of the magnitude of rank plan.top in the sample.
template <typename T>
__device__ void narrow_sample(const DgcEncoding<T>& call, int digit) {
  const DgcMemory<T> memory(call);
  const T* const v = call.memory[0];
  const DgcPlan& plan = call.plan;
  if (plan.sample == DgcSample::all) {
    narrow_to_largest(call.search, memory, plan.top, digit, call.n, call.ticket, [=](Size i) { return v[i]; });
    return;
  }
  const bool drawn = plan.sample == DgcSample::drawn;
  const T* const first = drawn ? memory.sample : v + plan.start;
  const Size stride = drawn ? 1 : plan.stride;
  narrow(*memory.state, digit, plan.samples, memory.histogram, call.ticket,
         [=](Size i) { return first[i * stride]; });
}

// The elements of the velocity that reach a threshold, counted over those of this thread.
template <typename T>
__device__ uint32 reaching(const DgcEncoding<T>& call, const DgcMemory<T>& memory, Bits<T> threshold) {
  const bool listed = are_listed(call.search, *memory.state, threshold);
  const T* const v = listed ? memory.values : call.memory[0];
  const Size count = listed ? memory.state->found : call.n;
  uint32 sum = 0;
  for_each_tile(count, [&](Size t) {
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, count);
      T x[rows_ahead<T>];
      Loaded<T>::load(v, column, x);
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) sum += column.has(r) && magnitude_bits(x[r]) >= threshold;
    }
  });
  return sum;
}

// Adapts the threshold once to the number of elements that reach it, as choose_elements of
// core/compressors/dgc/threshold.h does.
template <typename T>
__device__ void adapt(const DgcEncoding<T>& call) {
  const DgcMemory<T> memory(call);
  SearchState<T>& state = *memory.state;
  DgcState<T>& dgc = *memory.dgc;
  const DgcPlan& plan = call.plan;
  if (dgc.settled || plan.sample == DgcSample::all) return;
  const uint32 sum = scan(reaching(call, memory, state.limit)).all;
  if (threadIdx.x == 0) atomicAdd(&dgc.reaching, sum);
  if (!last_block(call.ticket) || threadIdx.x != 0) return;
  const uint32 count = published(&dgc.reaching);
  dgc.reaching = 0;
  if (too_many(count, plan.selects, plan.upper)) {
    if (plan.resample) {
      dgc.settled = dgc.largest = 1;
      state.limit = 0;
      state.rank = plan.selects;
    } else {
      state.limit = scaled_threshold<T>(state.limit, plan.upper);
    }
  } else if (too_few(count, plan.selects, plan.lower)) {
    state.limit = scaled_threshold<T>(state.limit, plan.lower);
  } else {
    dgc.settled = 1;
  }
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
