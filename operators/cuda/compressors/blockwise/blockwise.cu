// blockwise on the GPU: blocks of elements, each rounded to evenly spaced levels of its own.
//
// QSGD (Alistarh et al. 2017), THC (Li et al. 2024), SDP4Bit (Jia et al. 2024).
// core/compressors/blockwise/blockwise.cpp has the rounding, the payload, the memory and the bytes an element. Each
// function is one launch. A thread block takes a tile of elements, and keeps them in shared memory.
#include "cuda/compressors/blockwise/blockwise.h"

#include "cuda/bytes.cuh"
#include "cuda/compressors/blockwise/codes.cuh"
#include "cuda/correction.cuh"
#include "cuda/grid.cuh"
#include "cuda/settle.cuh"
#include "cuda/stream.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

constexpr int tile_elements = blockwise_tile;
constexpr int tile_draws = tile_elements / 64 * blockwise_group_draws;

// Calls step(i) for each element i below `count`, on one thread of the block.
template <typename Step>
__device__ inline void for_each_of_tile(int count, Step step) {
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += block_threads) step(i);
}

// A tile of n elements.
struct Tile {
  __device__ Tile(const BlockwiseFormat& format, Size index)
      : begin(index * tile_elements),
        size(static_cast<int>(format.n - begin < tile_elements ? format.n - begin : tile_elements)),
        blocks(static_cast<int>((size + format.block - 1) / format.block)),
        padded(static_cast<int>(blocks * format.block)) {}

  __device__ static Size count(const BlockwiseFormat& format) { return (format.n + tile_elements - 1) / tile_elements; }

  // The number of groups of codes.
  __device__ int groups(const BlockwiseFormat& format) const {
    return ((format.hadamard ? padded : size) + blockwise_group - 1) / blockwise_group;
  }

  const Size begin;
  const int size;
  const int blocks, padded;  // the last block is filled up with zeros
};

// The signs of the rotation.
struct Signs {
  // All threads of the block must call it, and then __syncthreads.
  __device__ void draw() {
    if (threadIdx.x != 0) return;
    RandomStream stream = blockwise_signs();
    for (uint64& word : words) word = stream();
  }

  template <typename T>
  __device__ T changed(T x, int i) const {
    return words[i / 64] >> i % 64 & 1 ? -x : x;
  }

  uint64 words[blockwise_sign_draws];
};

// The Walsh-Hadamard transform of the blocks of a tile, as in core/compressors/blockwise/hadamard.h. All threads of the
// block must call it. It starts and ends with __syncthreads.
template <typename T>
__device__ void transform(T* x, int padded, int block) {
  __syncthreads();
#pragma unroll 1
  for (int distance = 1; distance < block; distance *= 2) {
    for_each_of_tile(padded / 2, [&](int pair) {
      const int i = pair / distance * 2 * distance + pair % distance;
      const T a = x[i], b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    });
    __syncthreads();
  }
}

// The shared memory of compress.
template <typename T>
struct TileMemory {
  T p[tile_elements], rotated[tile_elements];
  T step[tile_elements / blockwise_least_block], low[tile_elements / blockwise_least_block];
  uint8 codes[tile_elements];
  uint64 draws[tile_draws];
  Signs signs;
};

// Computes p of a tile, and zeros after its end.
template <typename T>
__device__ void sweep(const BlockwiseEncoding<T>& call, const Tile& part, T* p) {
  const T residual_factor = residual_factor_of(call);
  constexpr int warp_rows = tile_elements / warp_lanes / warps, halves = tile_elements / tile;
  const Size half = part.begin / tile + warp() / (warps / halves);
  const int first = warp() % (warps / halves) * warp_rows;
  T* const to = p + warp() * warp_rows * warp_lanes + lane();
#pragma unroll 1
  for (int row = 0; row < warp_rows; row += rows_ahead<T>) {
    if (half * tile >= call.n) {
      for (int r = 0; r < rows_ahead<T>; ++r) to[(row + r) * warp_lanes] = 0;
      continue;
    }
    const Column column(half, first + row, call.n);
    const Loaded<T> loaded(call, column);
#pragma unroll
    for (int r = 0; r < rows_ahead<T>; ++r) {
      const T x = correct(call, residual_factor, loaded, column, r, [](T residual) { return residual; });
      to[(row + r) * warp_lanes] = column.has(r) ? x : T{0};
    }
  }
}

// Finds the scales of the blocks x, and writes them to the payload. A warp takes a block. Returns whether its blocks
// are finite.
template <typename T>
__device__ bool write_scales(const BlockwiseEncoding<T>& call, const Tile& part, const T* x, TileMemory<T>& memory) {
  const BlockwiseFormat& format = call.format;
  bool all_finite = true;
  for (int block = warp(); block < part.blocks; block += warps) {
    T least = infinity<T>(), greatest = -infinity<T>();
    bool finite = true;
#pragma unroll 2
    for (int i = lane(); i < int(format.block); i += warp_lanes) {
      const T here = x[block * format.block + i], high = format.symmetric ? absolute(here) : here;
      finite = finite && is_finite(here);
      if (here < least) least = here;
      if (high > greatest) greatest = high;
    }
    for (int half = warp_lanes / 2; half != 0; half /= 2) {
      const T low = __shfl_xor_sync(all_lanes, least, half), high = __shfl_xor_sync(all_lanes, greatest, half);
      if (low < least) least = low;
      if (high > greatest) greatest = high;
    }
    finite = __ballot_sync(all_lanes, !finite) == 0;
    all_finite = all_finite && finite;
    if (lane() != 0) continue;
    const BlockwiseScale scale =
        blockwise_scale(format.symmetric ? T{0} : least, greatest, finite, static_cast<T>(format.most()));
    const Size number = part.begin / format.block + block;
    write(call.payload + format.steps_at(), number, scale.step);
    if (!format.symmetric) write(call.payload + format.lows_at(), number, scale.low);
    memory.step[block] = static_cast<T>(bfloat16_value(scale.step));
    memory.low[block] = static_cast<T>(bfloat16_value(scale.low));
  }
  return all_finite;
}

// Draws the random numbers of a tile.
template <typename T>
__device__ void draw_tile(const BlockwiseEncoding<T>& call, const Tile& part, uint64* draws) {
  constexpr int segments = tile_draws / stream_segment;
  if (threadIdx.x >= segments) return;
  RandomStream stream = call.stream;
  jump(stream, part.begin / tile_elements * segments + threadIdx.x);
#pragma unroll 4
  for (int i = 0; i < stream_segment; ++i) draws[threadIdx.x * stream_segment + i] = stream();
}

// Rounds the elements x of a tile to codes. Calls visit(i, value) with the decoded value of element i.
template <typename T, typename Visit>
__device__ void quantise(const BlockwiseFormat& format, const Tile& part, const T* x, TileMemory<T>& memory,
                         Visit visit) {
  constexpr T whole = static_cast<T>(sizeof(T) == 4 ? 0x1.8p23 : 0x1.8p52);
  const T least = static_cast<T>(format.least()), most = static_cast<T>(format.most());
  for_each_of_tile(tile_elements, [&](int i) {
    if (i >= part.padded) {
      memory.codes[i] = 0;
      return;
    }
    const T step = memory.step[i / format.block], low = memory.low[i / format.block];
    T place = (x[i] - low) * (1 / step);
    if (format.stochastic) {
      const uint64 draw = memory.draws[i / 64 * blockwise_group_draws + i % 16];
      place = place + blockwise_offset<T>(draw >> i % 64 / 16 * 16 & 0xffff);
    }
    const T bounded = place > least ? place : least;
    const T q = ((bounded < most ? bounded : most) + whole) - whole;
    memory.codes[i] = static_cast<uint8>(static_cast<int>(q) + format.zero());
    visit(i, q * step + low);
  });
}

template <typename T>
__device__ void compress(const BlockwiseEncoding<T>& call) {
  __shared__ TileMemory<T> memory;
  const BlockwiseFormat& format = call.format;
  T* const residual = call.memory[0];
  bool finite = true;
  if (format.hadamard) memory.signs.draw();
  for (Size index = blockIdx.x; index < Tile::count(format); index += gridDim.x) {
    const Tile part(format, index);
    sweep(call, part, memory.p);
    if (format.stochastic) draw_tile(call, part, memory.draws);
    __syncthreads();
    const T* const x = format.hadamard ? memory.rotated : memory.p;
    const int in_block = static_cast<int>(format.block) - 1;  // a mask
    if (format.hadamard) {
      const T share = T{1} / static_cast<T>(format.block);
      for_each_of_tile(part.padded, [&](int i) {
        memory.rotated[i] = memory.signs.changed(memory.p[i], i & in_block) * share;
      });
      transform(memory.rotated, part.padded, static_cast<int>(format.block));
    }
    finite = write_scales(call, part, x, memory) && finite;
    __syncthreads();
    quantise(format, part, x, memory, [&](int i, T value) {
      if (format.hadamard) memory.rotated[i] = value;
      if (!format.hadamard && residual != nullptr && i < part.size) residual[part.begin + i] = memory.p[i] - value;
    });
    __syncthreads();
    const int bytes = part.groups(format) * static_cast<int>(format.group_bytes());
    uint8* const to = call.payload + part.begin / blockwise_group * format.group_bytes();
    for_each_of_tile(bytes, [&](int i) { to[i] = packed_byte(memory.codes, i, format.bits); });
    if (format.hadamard && residual != nullptr) {
      transform(memory.rotated, part.padded, static_cast<int>(format.block));
      for_each_of_tile(part.size, [&](int i) {
        residual[part.begin + i] = memory.p[i] - memory.signs.changed(memory.rotated[i], i & in_block);
      });
    }
    __syncthreads();  // the next tile overwrites the shared memory
  }
  if (!finite) say_not_finite(call.ticket);

  if (!last_block(call.ticket)) return;
  finite = all_finite(call.ticket);
  if (!finite && threadIdx.x == 0) write(call.payload + format.steps_at(), 0, bfloat16_nan);
  settle(call, call.bytes, finite);
}

// Decodes element i of a tile. Sets `finite` to false if its block is not finite.
template <typename T>
__device__ inline T decoded(const BlockwiseFormat& format, const uint8* payload, Size i, bool& finite) {
  const Size block = i / format.block;
  const uint16 step = read<uint16>(payload + format.steps_at(), block);
  const uint16 low = format.symmetric ? uint16{0} : read<uint16>(payload + format.lows_at(), block);
  finite = finite && blockwise_number_is_finite(step) && blockwise_number_is_finite(low);
  const int q = static_cast<int>(code_at(payload, i, format.bits)) - format.zero();
  return static_cast<T>(q) * static_cast<T>(bfloat16_value(step)) + static_cast<T>(bfloat16_value(low));
}

template <typename T>
__device__ void decompress(const BlockwiseDecoding<T>& call) {
  __shared__ T rotated[tile_elements];
  __shared__ Signs signs;
  const BlockwiseFormat& format = call.format;
  const int in_block = static_cast<int>(format.block) - 1;  // a mask
  bool finite = true;
  if (format.hadamard) signs.draw();
  for (Size index = blockIdx.x; index < Tile::count(format); index += gridDim.x) {
    const Tile part(format, index);
    T* const out = call.out + part.begin;
    if (call.count == 0 && !call.add) fill_with_zeros(out, part.size);
#pragma unroll 1
    for (Size k = 0; k < call.count; ++k) {
      const uint8* const payload = call.payloads + k * call.stride;
      const bool add = call.add || k != 0;
      if (format.hadamard) {
        for_each_of_tile(part.padded, [&](int i) {
          rotated[i] = decoded<T>(format, payload, part.begin + i, finite);
        });
        transform(rotated, part.padded, static_cast<int>(format.block));
      }
      for_each_of_tile(part.size, [&](int i) {
        const T value = format.hadamard ? signs.changed(rotated[i], i & in_block)
                                        : decoded<T>(format, payload, part.begin + i, finite);
        out[i] = add ? out[i] + value : value;
      });
    }
  }
  settle(call, finite);
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc::cuda;

GLUON_GC_KERNEL blockwise_compress_float32(Batch<BlockwiseEncoding<float>> calls) { compress(mine(calls)); }
GLUON_GC_KERNEL blockwise_compress_float64(Batch<BlockwiseEncoding<double>> calls) { compress(mine(calls)); }
GLUON_GC_KERNEL blockwise_decompress_float32(Batch<BlockwiseDecoding<float>> calls) { decompress(mine(calls)); }
GLUON_GC_KERNEL blockwise_decompress_float64(Batch<BlockwiseDecoding<double>> calls) { decompress(mine(calls)); }
