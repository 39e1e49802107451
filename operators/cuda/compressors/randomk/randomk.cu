// randomk on the GPU: sends p at k random indices, draw mod n. With `scaling` and without feedback, times n / k.
//
// Random-k: Stich et al. 2018 (Sparsified SGD with memory). core/compressors/randomk.cpp describes the payload, the
// memory and the bytes an element. Each element that is sent takes about 80 bytes more: random accesses take a whole
// sector of memory, and the indices are kept until all values are read. compress is one launch to send, one before it
// for momentum and feedback, and one after it for feedback. decompress is two launches.
#include "cuda/compressors/randomk/randomk.h"

#include "cuda/bytes.cuh"
#include "cuda/correction.cuh"
#include "cuda/grid.cuh"
#include "cuda/settle.cuh"
#include "cuda/stream.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Draws whose elements a lane loads before it uses any.
constexpr int draws_ahead = 4;

using Indices = Size[draws_ahead];

// Writes momentum, stores p in the residual, and sets the flag if a p is not finite.
template <typename T>
__device__ void correct_all(const RandomkEncoding<T>& call) {
  T* const kept = call.memory[0];
  const T residual_factor = residual_factor_of(call);
  bool finite = true;
  for_each_tile(call.n, [&](Size t) {
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, call.n);
      const Loaded<T> loaded(call, column);
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) {
        const T p = correct(call, residual_factor, loaded, column, r, [](T residual) { return residual; });
        if (kept != nullptr && column.has(r)) kept[column[r]] = p;
        finite = finite && is_finite(p);
      }
    }
  });
  if (!finite) say_not_finite(call.ticket);
}

// Writes the payload, and the indices for `clear`. The residual is cleared in a later launch, so that an element that
// is drawn twice is sent twice.
template <typename T>
__device__ void send(const RandomkEncoding<T>& call) {
  const T scale = scale_of(call);
  bool finite = true;
  for_each_draw<draws_ahead>(call.stream, call.n, call.k, [&](Size first, const Indices& indices) {
    T values[draws_ahead];
#pragma unroll
    for (int j = 0; j < draws_ahead; ++j) {
      values[j] = first + j < call.k ? corrected(call, scale, indices[j]) * call.factor : T{0};
    }
#pragma unroll
    for (int j = 0; j < draws_ahead; ++j) {
      finite = finite && is_finite(values[j]);
      if (first + j >= call.k) continue;
      write(call.payload, first + j, values[j]);
      if (call.indices != nullptr) call.indices[first + j] = indices[j];
    }
  });
  if (!finite) say_not_finite(call.ticket);

  if (!last_block(call.ticket)) return;
  finite = all_finite(call.ticket);
  if (!finite) {
    for (Size i = threadIdx.x; i < call.k; i += block_threads) write(call.payload, i, not_a_number<T>());
  }
  settle(call, call.bytes, finite);
}

template <typename T>
__device__ void clear(const RandomkEncoding<T>& call) {
  for_each_element(call.k, [&](Size i) { call.memory[0][call.indices[i]] = 0; });
}

template <typename T>
__device__ void empty(const RandomkDecoding<T>& call) {
  if (!call.add) for_each_element(call.n, [&](Size i) { call.out[i] = 0; });
}

// Writes the decoded values, or with `add` the sums for `store`. The sums are stored in a later launch, so that both
// sums of an element that is drawn twice are equal.
template <typename T>
__device__ void decompress(const RandomkDecoding<T>& call) {
  bool finite = true;
  for_each_draw<draws_ahead>(call.stream, call.n, call.k, [&](Size first, const Indices& indices) {
    T values[draws_ahead], before[draws_ahead] = {};
#pragma unroll
    for (int j = 0; j < draws_ahead; ++j) {
      const bool here = first + j < call.k;
      values[j] = here ? read<T>(call.payloads, first + j) : T{0};
      if (here && call.add) before[j] = call.out[indices[j]];
    }
#pragma unroll
    for (int j = 0; j < draws_ahead; ++j) {
      finite = finite && is_finite(values[j]);
      if (first + j >= call.k) continue;
      if (call.add) {
        call.indices[first + j] = indices[j];
        call.sums[first + j] = before[j] + values[j];
      } else {
        call.out[indices[j]] = values[j];
      }
    }
  });
  settle(call, finite);
}

template <typename T>
__device__ void store(const RandomkDecoding<T>& call) {
  if (call.add) for_each_element(call.k, [&](Size i) { call.out[call.indices[i]] = call.sums[i]; });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc::cuda;

GLUON_GC_KERNEL randomk_correct_float32(Batch<RandomkEncoding<float>> calls) { correct_all(mine(calls)); }
GLUON_GC_KERNEL randomk_correct_float64(Batch<RandomkEncoding<double>> calls) { correct_all(mine(calls)); }
GLUON_GC_KERNEL randomk_send_float32(Batch<RandomkEncoding<float>> calls) { send(mine(calls)); }
GLUON_GC_KERNEL randomk_send_float64(Batch<RandomkEncoding<double>> calls) { send(mine(calls)); }
GLUON_GC_KERNEL randomk_clear_float32(Batch<RandomkEncoding<float>> calls) { clear(mine(calls)); }
GLUON_GC_KERNEL randomk_clear_float64(Batch<RandomkEncoding<double>> calls) { clear(mine(calls)); }
GLUON_GC_KERNEL randomk_empty_float32(Batch<RandomkDecoding<float>> calls) { empty(mine(calls)); }
GLUON_GC_KERNEL randomk_empty_float64(Batch<RandomkDecoding<double>> calls) { empty(mine(calls)); }
GLUON_GC_KERNEL randomk_decompress_float32(Batch<RandomkDecoding<float>> calls) { decompress(mine(calls)); }
GLUON_GC_KERNEL randomk_decompress_float64(Batch<RandomkDecoding<double>> calls) { decompress(mine(calls)); }
GLUON_GC_KERNEL randomk_store_float32(Batch<RandomkDecoding<float>> calls) { store(mine(calls)); }
GLUON_GC_KERNEL randomk_store_float64(Batch<RandomkDecoding<double>> calls) { store(mine(calls)); }
