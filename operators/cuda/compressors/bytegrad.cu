// bytegrad: the kernels of core/compressors/bytegrad.cpp, which says what a payload and the memory are.
//
// Bytes an element of float: as there. Two launches, since the least and the largest come first.
#include "cuda/bytes.cuh"
#include "cuda/correction.cuh"
#include "cuda/decoding.cuh"
#include "cuda/grid.cuh"
#include "cuda/settle.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

constexpr int step_count = 255;

template <typename T>
constexpr Size header_bytes = sizeof(uint32) + 2 * sizeof(T);

template <typename T>
__device__ T infinity();
template <>
__device__ inline float infinity() { return __int_as_float(0x7f800000); }
template <>
__device__ inline double infinity() { return __longlong_as_double(0x7ff0000000000000); }

// The least and the largest of some elements, and whether all are finite.
template <typename T>
struct Range {
  __device__ void include(T x) { include(Range{x, x, x - x == 0}); }

  __device__ void include(const Range& other) {
    finite = finite && other.finite;
    if (other.low < low) low = other.low;
    if (other.high > high) high = other.high;
  }

  // Whether there are elements that differ, which takes a byte each to say.
  __device__ bool has_steps() const { return low < high; }

  T low = infinity<T>(), high = -infinity<T>();
  bool finite = true;
};

template <typename T>
__device__ inline Range<T> read_range(const uint8* payload) {
  return {read<T>(payload + sizeof(uint32), 0), read<T>(payload + sizeof(uint32), 1)};
}

// The range of a warp's ranges, in all lanes.
template <typename T>
__device__ inline Range<T> range_of_warp(Range<T> range) {
  for (int half = warp_lanes / 2; half != 0; half /= 2) {
    const T low = __shfl_xor_sync(all_lanes, range.low, half), high = __shfl_xor_sync(all_lanes, range.high, half);
    range.include(Range<T>{low, high, true});
  }
  range.finite = __ballot_sync(all_lanes, !range.finite) == 0;
  return range;
}

// The range of `count` ranges, which other blocks made, in all threads; the last block's threads call it together.
template <typename T>
__device__ inline Range<T> range_of(const T* ranges, Size count) {
  __shared__ T lows[warps], highs[warps];
  __shared__ bool finites[warps];
  Range<T> range;
#pragma unroll 4
  for (Size i = threadIdx.x; i < count; i += block_threads) {
    range.include(published(ranges + 2 * i));
    range.include(published(ranges + 2 * i + 1));
  }
  range = range_of_warp(range);
  if (lane() == 0) {
    lows[warp()] = range.low;
    highs[warp()] = range.high;
    finites[warp()] = range.finite;
  }
  __syncthreads();
  for (int i = 0; i < warps; ++i) range.include(Range<T>{lows[i], highs[i], finites[i]});
  return range;
}

// As Steps of core/compressors/bytegrad_steps.h.
template <typename T>
struct Steps {
  __device__ explicit Steps(const Range<T>& range) : low(range.low), high(range.high) {
    constexpr T far = static_cast<T>(sizeof(T) == 4 ? 0x1p64 : 0x1p512);
    const T width = high - low;
    unit = width > far ? 1 / far : width < 1 / far ? far : T{1};
    inverse_unit = 1 / unit;
    low_in_units = low * unit;
    const T scaled_width = high * unit - low_in_units;
    steps_per_unit = step_count / scaled_width;
    step = scaled_width / step_count;
  }

  // The number of the step nearest to p, ties to even, plus `whole`: its lowest byte.
  __device__ T nearest(T p) const { return (p * unit - low_in_units) * steps_per_unit + whole; }

  // What a number stands for: so many steps from the nearer end, which is thus exact.
  __device__ T operator()(T number) const {
    const bool lower = number - static_cast<T>(step_count) / 2 < 0;
    const T from_end = lower ? number : number - step_count;
    return (lower ? low : high) + from_end * step * inverse_unit;
  }

  static constexpr T whole = static_cast<T>(sizeof(T) == 4 ? 0x1p23 : 0x1p52);

  T low, high, unit, inverse_unit, low_in_units, steps_per_unit, step;
};

__device__ inline uint8 lowest_byte(float x) { return static_cast<uint8>(__float_as_int(x)); }
__device__ inline uint8 lowest_byte(double x) { return static_cast<uint8>(__double_as_longlong(x)); }

// Of a payload, of which its length says how much is in use.
template <typename T>
__device__ inline Size unused(Size n, Size length) {
  return header_bytes<T> + n - length;
}

// The first sweep: momentum and feedback, and the range of what comes out of them, in front of the payload.
template <typename T>
__device__ void find_range(const Encoding<T>& call) {
  T* const kept = call.memory[0];
  const T ratio = ratio_of(call);
  T* const ranges = static_cast<T*>(call.workspace);  // of warps
  Range<T> range;
  for_each_tile(call.n, [&](Size t) {
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, call.n);
      const Loaded<T> loaded(call, column);
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) {
        const T p = correct(call, ratio, loaded, column, r, [](T residual) { return residual; });
        if (!column.has(r)) continue;
        if (kept != nullptr) kept[column[r]] = p;
        range.include(p);
      }
    }
  });
  range = range_of_warp(range);
  const Size number = Size{blockIdx.x} * warps + warp();
  if (lane() == 0 && number < tiles_of(call.n)) {  // it had a tile
    ranges[2 * number] = range.finite ? range.low : not_a_number<T>();
    ranges[2 * number + 1] = range.high;
  }

  if (!last_block(call.ticket)) return;
  const Size all_warps = Size{gridDim.x} * warps, tiles = tiles_of(call.n);
  range = range_of(ranges, tiles < all_warps ? tiles : all_warps);
  if (call.n == 0) range = {0, 0, true};
  if (!range.finite) range.low = range.high = not_a_number<T>();
  const Size length = header_bytes<T> + (range.has_steps() ? call.n : 0);
  if (threadIdx.x == 0) {
    write(call.payload, 0, static_cast<uint32>(length));
    write(call.payload + sizeof(uint32), 0, range.finite ? range.low + T{0} : range.low);  // so that zeros have no sign
    write(call.payload + sizeof(uint32), 1, range.finite ? range.high + T{0} : range.high);
  }
  settle(call, call.bytes - unused<T>(call.n, length), range.finite);
}

// The second sweep: writes the bytes of p and, if there is a residual, what they lose.
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
  uint8* const bytes = call.payload + header_bytes<T>;
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
      sum[r] = sum[r] + (has_steps ? steps(payload[header_bytes<T> + column[r]]) : range.low);
    }
  });
  say_status(call, [&](const uint8* payload, Status& status) {
    const Range<T> range = read_range<T>(payload);
    status.bytes -= unused<T>(call.n, read<uint32>(payload));
    if (range.low - range.low != 0 || range.high - range.high != 0) status.finite = 0;
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
