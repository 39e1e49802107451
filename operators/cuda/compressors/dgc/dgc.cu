// dgc on the GPU (Deep Gradient Compression, Lin et al. 2018), with momentum m and velocity v:
//
//   nesterov: m = mu (m + g), v = v + m + g;   else: m = mu m + g, v = v + m;   without momentum: v = v + g
//
// Elements of v that reach a threshold are sent, and v, and with momentum_masking m, become 0 there.
// core/compressors/dgc/dgc.cpp describes the payload, the memory and the bytes an element. A strided sample is read
// once for each digit of its threshold, 32 bytes (a sector) an element. Candidates are listed as in topk. The list is
// read each time the threshold is adapted, for each digit if the largest elements are sent, and twice to send.
#include "cuda/compressors/dgc/threshold.cuh"
#include "cuda/compressors/sparse.cuh"
#include "cuda/compressors/topk/send.cuh"
#include "cuda/settle.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
__device__ void begin(const DgcEncoding<T>& call) {
  const DgcMemory<T> memory(call);
  const T shortening = shortening_of(call, memory), scale = scale_of(call);
  begin_search(call.search, memory, call.n, call.ticket, [&](Size i) {
    T momentum = call.momentum != nullptr ? call.earlier_momentum[i] : T{0};
    return compensate(call, shortening, call.gradient[i] * scale, momentum, call.earlier_memory[0][i]);
  });
  if (blockIdx.x == 0 && threadIdx.x == 0) memory.dgc->reaching = memory.dgc->settled = memory.dgc->largest = 0;
}

template <typename T>
__device__ void sweep(const DgcEncoding<T>& call) {
  const DgcMemory<T> memory(call);
  const T shortening = shortening_of(call, memory);
  T* const v = call.memory[0];
  const auto compensate_rows = [&](const Column& column, T (&p)[rows_ahead<T>]) {
    Loaded<T> loaded(call, column);
#pragma unroll
    for (int r = 0; r < rows_ahead<T>; ++r) {
      p[r] = compensate(call, shortening, loaded.gradient[r], loaded.momentum[r], loaded.kept[r]);
      if (call.momentum != nullptr && column.has(r)) call.momentum[column[r]] = loaded.momentum[r];
    }
  };
  collect(call.search, memory, call.n, v, compensate_rows, [=](Size i) { return v[i]; });
}

template <typename T>
__device__ void narrow(const DgcEncoding<T>& call, int digit) {
  const DgcMemory<T> memory(call);
  const T* const v = call.memory[0];
  if (!memory.dgc->largest) return;
  narrow_to_largest(call.search, memory, call.plan.selects, digit, call.n, call.ticket,
                    [=](Size i) { return v[i]; });
}

// The maximum number of sent elements whose magnitude equals the limit.
template <typename T>
__device__ inline uint32 equal_sent(const DgcMemory<T>& memory) {
  return memory.dgc->largest ? memory.state->rank : 0xffffffff;
}

template <typename T>
__device__ void count(const DgcEncoding<T>& call) {
  const DgcMemory<T> memory(call);
  const T* const v = call.memory[0];
  clear_lists(call.plan.format, call.payload, call.plan.selects);
  count_parts(call.search, memory, call.n, equal_sent(memory), call.plan.selects, call.ticket,
              [=](Size i) { return v[i]; });
}

// Writes one element, a NaN. All threads of the block call it.
template <typename T>
__device__ inline void spoil(const DgcEncoding<T>& call) {
  const SparseFormat& format = call.plan.format;
  uint8* const lists = call.payload + format.begin;
  uint8* const values = call.payload + format.values_at(1);
  for (Size i = threadIdx.x; i < format.values_at(1) - format.begin; i += block_threads) lists[i] = i == 0;  // index 0
  if (threadIdx.x != 0) return;
  if (format.half_values) {
    write(values, 0, to_half(not_a_number<T>()));
  } else {
    write(values, 0, not_a_number<T>());
  }
}

template <typename T>
__device__ void send(const DgcEncoding<T>& call) {
  const DgcMemory<T> memory(call);
  T* const v = call.memory[0];
  const SparseFormat& format = call.plan.format;
  const bool finite = memory.state->finite != 0;
  const uint32 count = finite ? memory.state->sent : 1;
  const SparseWriter<T> writer(format, call.payload, count, memory.state->edges);
  if (finite) {
    for_each_sent(call.search, memory, call.n, equal_sent(memory), [=](Size i) { return v[i]; },
                  [&](uint32 place, uint32 index, T x) {
                    v[index] = writer.add(place, index, x);
                    if (call.momentum != nullptr && call.plan.momentum_masking) call.momentum[index] = 0;
                  });
  }
  if (!last_block(call.ticket)) return;
  const auto length = static_cast<uint32>(format.payload_bytes<T>(count));
  if (threadIdx.x == 0) {
    write(call.payload, 0, length);
    if (finite) writer.finish();
  }
  if (!finite) spoil(call);
  settle(call, call.header + length, finite);
}

template <typename T>
__device__ void begin_sum(const DgcDecoding<T>& call) {
  Size bytes = call.bytes;
  if (call.status != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    for (Size i = 0; i < call.count; ++i) bytes -= call.capacity - read<uint32>(call.payloads + i * call.stride);
  }
  begin_sum(call, bytes);
}

template <typename T>
__device__ void add(const DgcDecoding<T>& call, Size number) {
  if (number >= call.count) return;
  const uint8* const payload = call.payloads + number * call.stride;
  const SparseFormat& format = call.format;
  add_payload(call, format, payload, static_cast<uint32>(format.count_of<T>(read<uint32>(payload))));
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc;
using namespace gluon_gc::cuda;

GLUON_GC_KERNEL dgc_clip_float32(Batch<DgcEncoding<float>> calls) { clip(mine(calls)); }
GLUON_GC_KERNEL dgc_clip_float64(Batch<DgcEncoding<double>> calls) { clip(mine(calls)); }
GLUON_GC_KERNEL dgc_begin_float32(Batch<DgcEncoding<float>> calls) { begin(mine(calls)); }
GLUON_GC_KERNEL dgc_begin_float64(Batch<DgcEncoding<double>> calls) { begin(mine(calls)); }
GLUON_GC_KERNEL dgc_sweep_float32(Batch<DgcEncoding<float>> calls) { sweep(mine(calls)); }
GLUON_GC_KERNEL dgc_sweep_float64(Batch<DgcEncoding<double>> calls) { sweep(mine(calls)); }
GLUON_GC_KERNEL dgc_draw_float32(Batch<DgcEncoding<float>> calls) { draw(mine(calls)); }
GLUON_GC_KERNEL dgc_draw_float64(Batch<DgcEncoding<double>> calls) { draw(mine(calls)); }
GLUON_GC_KERNEL dgc_narrow_sample_float32(Batch<DgcEncoding<float>> calls, int digit) { narrow_sample(mine(calls), digit); }
GLUON_GC_KERNEL dgc_narrow_sample_float64(Batch<DgcEncoding<double>> calls, int digit) { narrow_sample(mine(calls), digit); }
GLUON_GC_KERNEL dgc_adapt_float32(Batch<DgcEncoding<float>> calls) { adapt(mine(calls)); }
GLUON_GC_KERNEL dgc_adapt_float64(Batch<DgcEncoding<double>> calls) { adapt(mine(calls)); }
GLUON_GC_KERNEL dgc_narrow_float32(Batch<DgcEncoding<float>> calls, int digit) { narrow(mine(calls), digit); }
GLUON_GC_KERNEL dgc_narrow_float64(Batch<DgcEncoding<double>> calls, int digit) { narrow(mine(calls), digit); }
GLUON_GC_KERNEL dgc_count_float32(Batch<DgcEncoding<float>> calls) { count(mine(calls)); }
GLUON_GC_KERNEL dgc_count_float64(Batch<DgcEncoding<double>> calls) { count(mine(calls)); }
GLUON_GC_KERNEL dgc_send_float32(Batch<DgcEncoding<float>> calls) { send(mine(calls)); }
GLUON_GC_KERNEL dgc_send_float64(Batch<DgcEncoding<double>> calls) { send(mine(calls)); }
GLUON_GC_KERNEL dgc_begin_sum_float32(Batch<DgcDecoding<float>> calls) { begin_sum(mine(calls)); }
GLUON_GC_KERNEL dgc_begin_sum_float64(Batch<DgcDecoding<double>> calls) { begin_sum(mine(calls)); }
GLUON_GC_KERNEL dgc_add_float32(Batch<DgcDecoding<float>> calls, Size number) { add(mine(calls), number); }
GLUON_GC_KERNEL dgc_add_float64(Batch<DgcDecoding<double>> calls, Size number) { add(mine(calls), number); }
