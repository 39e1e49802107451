// topk on the GPU: sends the k elements with the largest |p|, of equal ones those with the lowest indices.
//
// Top-k: Aji & Heafield 2017, Lin et al. 2018. core/compressors/topk/topk.cpp describes the payload, the memory and the
// bytes an element. A sample gives a threshold, and the elements that reach it are listed as candidates. The list is
// read once for each digit of the limit (plan.h), and twice to send. If the candidates do not fit in the list, or
// are fewer than k, each of these reads is a sweep over p instead.
#include "cuda/compressors/sparse.cuh"
#include "cuda/compressors/topk/plan.h"
#include "cuda/compressors/topk/send.cuh"
#include "cuda/settle.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
__device__ void begin(const TopkEncoding<T>& topk) {
  const SearchMemory<T> memory(topk.workspace, topk.n, topk.search);
  const T scale = scale_of(topk), residual_factor = residual_factor_of(topk);
  const auto p = [&](Size i) { return preview(topk, scale, residual_factor, i); };
  begin_search(topk.search, memory, topk.n, topk.ticket, p);
}

template <typename T>
__device__ void sweep(const TopkEncoding<T>& topk) {
  const SearchMemory<T> memory(topk.workspace, topk.n, topk.search);
  const T scale = scale_of(topk), residual_factor = residual_factor_of(topk);
  const auto correct_rows = [&](const Column& column, T (&p)[rows_ahead<T>]) {
    const Loaded<T> loaded(topk, column);
#pragma unroll
    for (int r = 0; r < rows_ahead<T>; ++r) {
      p[r] = correct(topk, residual_factor, loaded, column, r, [](T residual) { return residual; });
    }
  };
  collect(topk.search, memory, topk.n, topk.memory[0], correct_rows, [&](Size i) { return corrected(topk, scale, i); });
}

template <typename T>
__device__ void narrow(const TopkEncoding<T>& topk, int digit) {
  const SearchMemory<T> memory(topk.workspace, topk.n, topk.search);
  const T scale = scale_of(topk);
  narrow_to_largest(topk.search, memory, topk.search.k, digit, topk.n, topk.ticket,
                    [&](Size i) { return corrected(topk, scale, i); });
}

template <typename T>
__device__ void count(const TopkEncoding<T>& topk) {
  const SearchMemory<T> memory(topk.workspace, topk.n, topk.search);
  const T scale = scale_of(topk);
  clear_lists(topk.format, topk.payload, topk.search.k);
  count_parts(topk.search, memory, topk.n, memory.state->rank, topk.search.k, topk.ticket,
              [&](Size i) { return corrected(topk, scale, i); });
}

template <typename T>
__device__ void send(const TopkEncoding<T>& topk) {
  const SearchMemory<T> memory(topk.workspace, topk.n, topk.search);
  const T scale = scale_of(topk);
  const SparseWriter<T> writer(topk.format, topk.payload, topk.search.k, memory.state->edges);
  for_each_sent(topk.search, memory, topk.n, memory.state->rank, [&](Size i) { return corrected(topk, scale, i); },
                [&](uint32 place, uint32 index, T x) {
                  const T rest = writer.add(place, index, x);
                  if (topk.memory[0] != nullptr) topk.memory[0][index] = rest;
                });
  if (!last_block(topk.ticket)) return;
  if (threadIdx.x == 0) writer.finish();
  settle(topk, topk.bytes, memory.state->finite != 0);
}

template <typename T>
__device__ void begin_sum(const TopkDecoding<T>& call) {
  begin_sum(call, call.bytes);
}

template <typename T>
__device__ void add(const TopkDecoding<T>& call, Size number) {
  if (number >= call.count) return;
  const uint8* const payload = call.payloads + number * call.stride;
  add_payload(call, call.format, payload, call.k);
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc;
using namespace gluon_gc::cuda;

GLUON_GC_KERNEL topk_begin_float32(Batch<TopkEncoding<float>> calls) { begin(mine(calls)); }
GLUON_GC_KERNEL topk_begin_float64(Batch<TopkEncoding<double>> calls) { begin(mine(calls)); }
GLUON_GC_KERNEL topk_sweep_float32(Batch<TopkEncoding<float>> calls) { sweep(mine(calls)); }
GLUON_GC_KERNEL topk_sweep_float64(Batch<TopkEncoding<double>> calls) { sweep(mine(calls)); }
GLUON_GC_KERNEL topk_narrow_float32(Batch<TopkEncoding<float>> calls, int digit) { narrow(mine(calls), digit); }
GLUON_GC_KERNEL topk_narrow_float64(Batch<TopkEncoding<double>> calls, int digit) { narrow(mine(calls), digit); }
GLUON_GC_KERNEL topk_count_float32(Batch<TopkEncoding<float>> calls) { count(mine(calls)); }
GLUON_GC_KERNEL topk_count_float64(Batch<TopkEncoding<double>> calls) { count(mine(calls)); }
GLUON_GC_KERNEL topk_send_float32(Batch<TopkEncoding<float>> calls) { send(mine(calls)); }
GLUON_GC_KERNEL topk_send_float64(Batch<TopkEncoding<double>> calls) { send(mine(calls)); }
GLUON_GC_KERNEL topk_begin_sum_float32(Batch<TopkDecoding<float>> calls) { begin_sum(mine(calls)); }
GLUON_GC_KERNEL topk_begin_sum_float64(Batch<TopkDecoding<double>> calls) { begin_sum(mine(calls)); }
GLUON_GC_KERNEL topk_add_float32(Batch<TopkDecoding<float>> calls, Size number) { add(mine(calls), number); }
GLUON_GC_KERNEL topk_add_float64(Batch<TopkDecoding<double>> calls, Size number) { add(mine(calls), number); }
