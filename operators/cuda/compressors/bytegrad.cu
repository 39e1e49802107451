// bytegrad on the GPU: q = round((p - lo) / (hi - lo) * 255), D(p) = lo + q (hi - lo) / 255, lo = min p, hi = max p.
//
// ByteGrad of Bagua: Gan et al. 2021. core/compressors/bytegrad/bytegrad.cpp describes the payload, the memory and the
// bytes an element. compress is two launches: the first finds lo and hi.
#include "core/compressors/bytegrad/format.h"
#include "cuda/bytes.cuh"
#include "cuda/correction.cuh"
#include "cuda/decoding.cuh"
#include "cuda/grid.cuh"
#include "cuda/settle.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The minimum and the maximum of some elements, and whether all are finite.
template <typename T>
struct Extremes {
  __device__ void include(T x) { include(Extremes{x, x, is_finite(x)}); }

  __device__ void include(const Extremes& other) {
    finite = finite && other.finite;
    if (other.low < low) low = other.low;
    if (other.high > high) high = other.high;
  }

  T low = infinity<T>(), high = -infinity<T>();
  bool finite = true;
};

template <typename T>
__device__ inline Range<T> read_range(const uint8* payload) {
  return {read<T>(payload + range_at, 0), read<T>(payload + range_at, 1)};
}

// Combines the extremes of the warp's lanes. All lanes get the result.
template <typename T>
__device__ inline Extremes<T> extremes_of_warp(Extremes<T> extremes) {
  for (int half = warp_lanes / 2; half != 0; half /= 2) {
    const T low = __shfl_xor_sync(all_lanes, extremes.low, half), high = __shfl_xor_sync(all_lanes, extremes.high, half);
    extremes.include(Extremes<T>{low, high, true});
  }
  extremes.finite = __ballot_sync(all_lanes, !extremes.finite) == 0;
  return extremes;
}

// Combines the extremes of `count` ranges, which other blocks wrote. All threads of the last block must call it, and
// get the result.
template <typename T>
__device__ inline Extremes<T> extremes_of(const T* ranges, Size count) {
  __shared__ T lows[warps], highs[warps];
  __shared__ bool finites[warps];
  Extremes<T> extremes;
#pragma unroll 4
  for (Size i = threadIdx.x; i < count; i += block_threads) {
    extremes.include(published(ranges + 2 * i));
    extremes.include(published(ranges + 2 * i + 1));
  }
  extremes = extremes_of_warp(extremes);
  if (lane() == 0) {
    lows[warp()] = extremes.low;
    highs[warp()] = extremes.high;
    finites[warp()] = extremes.finite;
  }
  __syncthreads();
  for (int i = 0; i < warps; ++i) extremes.include(Extremes<T>{lows[i], highs[i], finites[i]});
  return extremes;
}

// Converts elements to step numbers and back, as Steps of core/compressors/bytegrad/steps.h.
template <typename T>
struct Steps : StepSizes<T> {
  __device__ explicit Steps(const Range<T>& range) : StepSizes<T>(range), low(range.low), high(range.high) {}

  // Returns q + whole: q is the step nearest to p, ties to even, and the lowest byte of the result.
  __device__ T nearest(T p) const { return (p * this->unit - this->low_in_units) * this->steps_per_unit + this->whole; }

  // The element that a step number decodes to. Steps are counted from the nearer end, so both ends are exact.
  __device__ T operator()(T number) const {
    const bool lower = number < this->first_upper;
    const T from_end = lower ? number : number - step_count;
    return (lower ? low : high) + from_end * this->step * this->inverse_unit;
  }

  T low, high;
};

__device__ inline uint8 lowest_byte(float x) { return static_cast<uint8>(__float_as_int(x)); }
__device__ inline uint8 lowest_byte(double x) { return static_cast<uint8>(__double_as_longlong(x)); }

// The difference between a payload's maximum length and this length.
template <typename T>
__device__ inline Size unused(Size n, Size length) {
  return bytegrad_header_bytes<T> + n - length;
}

// The first sweep: applies momentum and feedback, and writes the range of p to the payload.
template <typename T>
__device__ void find_range(const Encoding<T>& call) {
  T* const kept = call.memory[0];
  const T residual_factor = residual_factor_of(call);
  T* const ranges = static_cast<T*>(call.workspace);  // one a warp
  Extremes<T> extremes;
  for_each_tile(call.n, [&](Size t) {
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, call.n);
      const Loaded<T> loaded(call, column);
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) {
        const T p = correct(call, residual_factor, loaded, column, r, [](T residual) { return residual; });
        if (!column.has(r)) continue;
        if (kept != nullptr) kept[column[r]] = p;
        extremes.include(p);
      }
    }
  });
  extremes = extremes_of_warp(extremes);
  const Size number = Size{blockIdx.x} * warps + warp();
  if (lane() == 0 && number < tiles_of(call.n)) {  // other warps had no tile
    ranges[2 * number] = extremes.finite ? extremes.low : not_a_number<T>();
    ranges[2 * number + 1] = extremes.high;
  }

  if (!last_block(call.ticket)) return;
  const Size all_warps = Size{gridDim.x} * warps, tiles = tiles_of(call.n);
  extremes = extremes_of(ranges, tiles < all_warps ? tiles : all_warps);
  Range<T> range = {extremes.low + T{0}, extremes.high + T{0}};  // turns -0.0 into 0.0
  if (call.n == 0) range = {0, 0};
  if (!extremes.finite) range = {not_a_number<T>(), not_a_number<T>()};
  const Size length = bytegrad_payload_bytes(range, call.n);
  if (threadIdx.x == 0) {
    write(call.payload, 0, static_cast<uint32>(length));
    write(call.payload + range_at, 0, range.low);
    write(call.payload + range_at, 1, range.high);
  }
  settle(call, call.bytes - unused<T>(call.n, length), call.n == 0 || extremes.finite);
}

// The second sweep: writes the bytes of p, and with feedback the residual p - D(p).
template <typename T>
__device__ void quantise(const Encoding<T>& call) {
  T* const residual = call.memory[0];
  const Range<T> range = read_range<T>(call.payload);
  if (!range.has_steps()) {
    if (residual != nullptr && range.low == range.high) for_each_element(call.n, [&](Size i) { residual[i] = 0; });
    return;
  }
  const Steps<T> steps(range);
  const T scale = scale_of(call);
  uint8* const bytes = call.payload + bytegrad_header_bytes<T>;
  for_each_tile(call.n, [&](Size t) {
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, call.n);
      T p[rows_ahead<T>];
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) p[r] = column.has(r) ? corrected(call, scale, column[r]) : T{0};
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) {
        if (!column.has(r)) continue;
        const T number = steps.nearest(p[r]);
        bytes[column[r]] = lowest_byte(number);
        if (residual != nullptr) residual[column[r]] = p[r] - steps(number - Steps<T>::whole);
      }
    }
  });
}

template <typename T>
__device__ void decompress(const Decoding<T>& call) {
  using Sum = T[rows_ahead<T>];
  sum_payloads<rows_ahead<T>>(call, [](const uint8* payload, Size, int, const Column& column, Sum& sum) {
    const Range<T> range = read_range<T>(payload);
    const bool has_steps = range.has_steps();
    const Steps<T> steps(range);
#pragma unroll
    for (int r = 0; r < rows_ahead<T>; ++r) {
      if (!column.has(r)) continue;
      sum[r] = sum[r] + (has_steps ? steps(payload[bytegrad_header_bytes<T> + column[r]]) : range.low);
    }
  });
  say_status(call, [&](const uint8* payload, Status& status) {
    const Range<T> range = read_range<T>(payload);
    status.bytes -= unused<T>(call.n, read<uint32>(payload));
    if (!is_finite(range.low) || !is_finite(range.high)) status.finite = 0;
  });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc::cuda;

GLUON_GC_KERNEL bytegrad_range_float32(Batch<Encoding<float>> calls) { find_range(mine(calls)); }
GLUON_GC_KERNEL bytegrad_range_float64(Batch<Encoding<double>> calls) { find_range(mine(calls)); }
GLUON_GC_KERNEL bytegrad_quantise_float32(Batch<Encoding<float>> calls) { quantise(mine(calls)); }
GLUON_GC_KERNEL bytegrad_quantise_float64(Batch<Encoding<double>> calls) { quantise(mine(calls)); }
GLUON_GC_KERNEL bytegrad_decompress_float32(Batch<Decoding<float>> calls) { decompress(mine(calls)); }
GLUON_GC_KERNEL bytegrad_decompress_float64(Batch<Decoding<double>> calls) { decompress(mine(calls)); }
