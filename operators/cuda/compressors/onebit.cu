// onebit on the GPU: D(p) = -scale where p < 0, else scale. The scale is mean |p|, or 1 without scaling.
//
// 1-bit SGD: Seide et al. 2014; signSGD: Bernstein et al. 2018; EF-SignSGD: Karimireddy et al. 2019.
// core/compressors/onebit.cpp describes the payload, the memory and the bytes an element. Each function is one launch.
// A warp writes 32 words of the payload at a time, one a lane.
#include "core/compressors/onebit_format.h"
#include "cuda/bytes.cuh"
#include "cuda/correction.cuh"
#include "cuda/decoding.cuh"
#include "cuda/grid.cuh"
#include "cuda/settle.cuh"
#include "cuda/sums.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
__device__ inline T read_scale(const uint8* payload, Size n) {
  return read<T>(payload + scale_at(n));
}

// e = p - D(p), from the p of the last call and the scale that it decodes with.
template <typename T>
struct LazyResidual {
  __device__ T operator()(T p) const { return p - copysign(scale, p); }
  T scale;
};

template <typename T>
__device__ void compress(const Encoding<T>& call, bool scaling) {
  const bool feedback = call.memory[0] != nullptr;
  const LazyResidual<T> residual{feedback ? *call.earlier_memory[1] : T{0}};
  const T residual_factor = residual_factor_of(call);

  for_each_tile(call.n, [&](Size t) {
    double magnitudes = 0;
    uint32 signs = 0;
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, call.n);
      const Loaded<T> loaded(call, column);
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) {
        T p = correct(call, residual_factor, loaded, column, r, residual);
        if (!column.has(r)) p = 0;
        if (call.memory[0] != nullptr && column.has(r)) call.memory[0][column[r]] = p;
        magnitudes += fabs(static_cast<double>(p));
        const uint32 word = __ballot_sync(all_lanes, p < 0);
        if (lane() == row + r) signs = word;
      }
    }
    const Size word = t * rows + lane();
    if (word < word_count(call.n)) write(call.payload, word, signs);
    magnitudes = butterfly(magnitudes);
    if (lane() == 0) static_cast<double*>(call.workspace)[t] = magnitudes;
  });

  if (!last_block(call.ticket)) return;
  const double sum = sum_tiles(static_cast<double*>(call.workspace), tiles_of(call.n));
  const bool finite = is_finite(sum);
  const T scale = onebit_scale<T>(sum, call.n, scaling);
  if (threadIdx.x == 0) {
    write(call.payload + scale_at(call.n), 0, finite ? scale : not_a_number<T>());
    if (feedback && finite) *call.memory[1] = scale;
  }
  settle(call, call.bytes, finite);
}

template <typename T>
__device__ void decompress(const Decoding<T>& call) {
  using Sum = T[rows_ahead<T>];
  sum_payloads<rows_ahead<T>>(call, [&](const uint8* payload, Size t, int row, const Column&, Sum& sum) {
    const Size word = t * rows + lane();
    const T scale = read_scale<T>(payload, call.n);
    const uint32 signs = word < word_count(call.n) ? read<uint32>(payload, word) : 0;
#pragma unroll
    for (int r = 0; r < rows_ahead<T>; ++r) {
      sum[r] = sum[r] + (__shfl_sync(all_lanes, signs, row + r) >> lane() & 1 ? -scale : scale);
    }
  });
  say_status(call, [&](const uint8* payload, Status& status) {
    if (!is_finite(read_scale<T>(payload, call.n))) status.finite = 0;
  });
}

template <typename T>
__device__ void residual(const Keeping<T>& call) {
  const LazyResidual<T> residual_of{*call.memory[1]};
  for_each_element(call.n, [&](Size i) { call.residual[i] = residual_of(call.memory[0][i]); });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc::cuda;

GLUON_GC_KERNEL onebit_compress_float32(Batch<Encoding<float>> calls, bool scaling) { compress(mine(calls), scaling); }
GLUON_GC_KERNEL onebit_compress_float64(Batch<Encoding<double>> calls, bool scaling) { compress(mine(calls), scaling); }
GLUON_GC_KERNEL onebit_decompress_float32(Batch<Decoding<float>> calls) { decompress(mine(calls)); }
GLUON_GC_KERNEL onebit_decompress_float64(Batch<Decoding<double>> calls) { decompress(mine(calls)); }
GLUON_GC_KERNEL onebit_residual_float32(Batch<Keeping<float>> calls) { residual(mine(calls)); }
GLUON_GC_KERNEL onebit_residual_float64(Batch<Keeping<double>> calls) { residual(mine(calls)); }
