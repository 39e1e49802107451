// dithering on the GPU: rounds y = |p| / norm * s at random to one of the two nearest levels, so that the mean is y.
//
// QSGD (s even levels): Alistarh et al. 2017; natural dithering (levels are powers of two): Horvath et al. 2019.
// core/compressors/dithering/dithering.cpp describes the payload, the memory and the bytes an element. Payloads have a
// fixed width, because an Elias code can only be read serially. compress is two launches: the first finds the norm, and
// the state of the random stream at the start of each chunk.
#include "cuda/compressors/dithering/dithering.h"

#include "cuda/bytes.cuh"
#include "cuda/compressors/dithering/levels.cuh"
#include "cuda/correction.cuh"
#include "cuda/decoding.cuh"
#include "cuda/grid.cuh"
#include "cuda/largest.cuh"
#include "cuda/settle.cuh"
#include "cuda/stream.cuh"
#include "cuda/sums.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

constexpr int group_elements = plane_group;

template <typename T>
__device__ inline T read_norm(const uint8* payload) {
  return read<T>(payload + norm_at);
}

// The offset of the planes of a group of sixteen elements in a payload.
template <typename T>
__device__ inline Size group_at(Size group, const DitheringConfig& config) {
  return planes_at<T>(group, config.planes);
}

// A warp writes the planes of two groups, one segment apart. The lower lanes have the elements of the first group, the
// upper lanes those of the second.
template <typename T>
__device__ inline void write_planes(const DitheringEncoding<T>& call, uint32 first, bool negative, uint32 symbol) {
  const int planes = call.config.planes;
  uint32 mine = 0;  // this lane's plane of both groups
  for (int plane = 0; plane < planes; ++plane) {
    const uint32 bits = __ballot_sync(all_lanes, plane == 0 ? negative : symbol >> (plane - 1) & 1);
    if (lane() == plane) mine = bits;
  }
  if (lane() >= planes) return;
  for (int half = 0; half < 2; ++half, first += call.segment, mine >>= group_elements) {
    uint8* const group = call.payload + group_at<T>(first / group_elements, call.config);
    if (first < call.n) write(group, lane(), static_cast<uint16>(mine));
  }
}

// The symbol of element i in the upper bits, and in the lowest bit whether the element is negative.
template <typename T>
__device__ inline uint32 read_value(const uint8* payload, Size i, const DitheringConfig& config) {
  const uint8* const byte = payload + group_at<T>(i / group_elements, config) + i % group_elements / 8;
  uint32 value = 0;
  for (int plane = 0; plane < config.planes; ++plane) {
    value |= (byte[plane * sizeof(uint16)] >> i % 8 & 1u) << plane;
  }
  return value;
}

// Returns the largest of `count` magnitudes, which other blocks wrote. All threads of the last block must call it, and
// get the result. A NaN counts as larger than infinity.
__device__ inline double largest_of(const double* magnitudes, Size count) {
  __shared__ uint64 of_warps[warps];
  uint64 largest = 0;
#pragma unroll 4
  for (Size i = threadIdx.x; i < count; i += block_threads) {
    const uint64 bits = bits_of(published(magnitudes + i));
    if (bits > largest) largest = bits;
  }
  largest = largest_of_warp(largest);
  if (lane() == 0) of_warps[warp()] = largest;
  __syncthreads();
  for (int i = 0; i < warps; ++i) {
    if (of_warps[i] > largest) largest = of_warps[i];
  }
  return from_bits(largest);
}

// The first sweep: applies momentum and feedback, and writes the norm of p to the payload.
template <typename T>
__device__ void find_norm(const DitheringEncoding<T>& call) {
  for_each_element(chunks_of(call.n, call.segment), [&](Size c) {
    RandomStream stream = call.stream;
    jump(stream, c * (chunk_of(call.segment) / stream_segment));
    call.streams[c] = stream;
  });

  T* const kept = call.memory[0];
  const T residual_factor = residual_factor_of(call);
  const bool l2 = call.config.l2;
  for_each_tile(call.n, [&](Size t) {
    double norm = 0;  // l2: the sum of squares
#pragma unroll 1
    for (int row = 0; row < rows; row += rows_ahead<T>) {
      const Column column(t, row, call.n);
      const Loaded<T> loaded(call, column);
#pragma unroll
      for (int r = 0; r < rows_ahead<T>; ++r) {
        T p = correct(call, residual_factor, loaded, column, r, [](T residual) { return residual; });
        if (!column.has(r)) p = 0;
        if (kept != nullptr && column.has(r)) kept[column[r]] = p;
        const double magnitude = fabs(static_cast<double>(p));
        if (l2) {
          norm += magnitude * magnitude;
        } else if (bits_of(magnitude) > bits_of(norm)) {
          norm = magnitude;
        }
      }
    }
    norm = l2 ? butterfly(norm) : from_bits(largest_of_warp(bits_of(norm)));
    if (lane() == 0) call.sums[t] = norm;
  });

  if (!last_block(call.ticket)) return;
  const Size tiles = tiles_of(call.n);
  const T norm = l2 ? norm_of_squares<T>(sum_tiles(call.sums, tiles)) : static_cast<T>(largest_of(call.sums, tiles));
  if (threadIdx.x != 0) return;
  const Size bytes = call.bytes - call.header, end = group_at<T>(plane_groups(call.n), call.config);
  if (end != bytes) write(call.payload + end, 0, uint16{0});
  write(call.payload, 0, static_cast<uint32>(bytes));
  write(call.payload, 1, uint32{0});  // fixed width
  write(call.payload + norm_at, 0, is_finite(norm) ? norm : not_a_number<T>());
}

// Elements that a lane loads before it uses any: fewer than rows_ahead, because these sweeps compute much.
template <typename T>
constexpr int few_ahead = sizeof(T) == 4 ? 4 : 1;

// The second sweep: writes the planes of p, and with feedback the residual p - D(p). A warp takes a chunk, sixteen
// elements of each segment at a time. First each lane draws for its own segment. Then the lanes take the elements of
// two segments together, so that loads are coalesced and a ballot is a plane of two groups.
template <typename T>
__device__ void quantise(const DitheringEncoding<T>& call) {
  __shared__ uint32 draws[warps][warp_lanes][group_elements + 1];  // upper halves; + 1 avoids bank conflicts
  __shared__ RandomStream streams[warps][warp_lanes];              // before these draws
  T* const residual = call.memory[0];
  const T norm = read_norm<T>(call.payload);
  const Quantiser<T> quantiser(norm, call.config);
  const Levels<T> levels(norm, call.config);
  const T scale = scale_of(call);
  const int half = lane() / group_elements, place = lane() % group_elements;

  share_among_warps(chunks_of(call.n, call.segment), [&](Size c) {
    RandomStream stream = call.streams[c];
    jump(stream, lane() * (call.segment / stream_segment));
#pragma unroll 1
    for (uint32 offset = 0; offset < call.segment; offset += group_elements) {
      streams[warp()][lane()] = stream;
#pragma unroll 4
      for (int i = 0; i < group_elements; ++i) draws[warp()][lane()][i] = static_cast<uint32>(stream() >> 32);
      __syncwarp();
#pragma unroll 1
      for (int segment = 0; segment < warp_lanes; segment += 2 * few_ahead<T>) {
        const uint32 first = (static_cast<uint32>(c) * warp_lanes + segment) * call.segment + offset;
        T p[few_ahead<T>];
#pragma unroll
        for (int r = 0; r < few_ahead<T>; ++r) {
          const uint32 i = first + (2 * r + half) * call.segment + place;
          p[r] = i < call.n ? corrected(call, scale, i) : T{0};
        }
#pragma unroll
        for (int r = 0; r < few_ahead<T>; ++r) {
          const int mine = segment + 2 * r + half;
          const uint32 symbol = quantiser(p[r], draws[warp()][mine][place], [&] {
            RandomStream from = streams[warp()][mine];
            for (int i = 0; i < place; ++i) from();
            return from();
          });
          const bool negative = p[r] < 0 && symbol != 0;
          write_planes<T>(call, first + 2 * r * call.segment, negative, symbol);
          if (residual == nullptr) continue;
          const T level = levels(symbol);
          const uint32 i = first + (2 * r + half) * call.segment + place;
          if (i < call.n) residual[i] = p[r] - (negative ? -level : level);
        }
      }
      __syncwarp();  // a ballot is no fence
    }
  });

  if (last_block(call.ticket)) settle(call, call.bytes, is_finite(norm));
}

template <typename T>
__device__ void decompress(const Decoding<T>& call, const DitheringConfig& config) {
  using Sum = T[few_ahead<T>];
  sum_payloads<few_ahead<T>>(call, [&](const uint8* payload, Size, int, const Column& column, Sum& sum) {
    const Levels<T> levels(read_norm<T>(payload), config);
#pragma unroll
    for (int r = 0; r < few_ahead<T>; ++r) {
      const uint32 value = column.has(r) ? read_value<T>(payload, column[r], config) : 0;
      const T level = levels(value >> 1);
      sum[r] = sum[r] + (value & 1 ? -level : level);
    }
  });
  say_status(call, [](const uint8* payload, Status& status) {
    if (!is_finite(read_norm<T>(payload))) status.finite = 0;
  });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc;
using namespace gluon_gc::cuda;

GLUON_GC_KERNEL dithering_norm_float32(Batch<DitheringEncoding<float>> calls) { find_norm(mine(calls)); }
GLUON_GC_KERNEL dithering_norm_float64(Batch<DitheringEncoding<double>> calls) { find_norm(mine(calls)); }
GLUON_GC_KERNEL dithering_quantise_float32(Batch<DitheringEncoding<float>> calls) { quantise(mine(calls)); }
GLUON_GC_KERNEL dithering_quantise_float64(Batch<DitheringEncoding<double>> calls) { quantise(mine(calls)); }
GLUON_GC_KERNEL dithering_decompress_float32(Batch<Decoding<float>> calls, DitheringConfig config) {
  decompress(mine(calls), config);
}
GLUON_GC_KERNEL dithering_decompress_float64(Batch<Decoding<double>> calls, DitheringConfig config) {
  decompress(mine(calls), config);
}
