// blocktopk on the GPU: of each block of elements the k with the largest magnitude, exactly.
//
// Sarfi et al. 2025 (SparseLoCo). core/compressors/blocktopk/blocktopk.cpp describes the payload, the memory and the
// bytes an element. Each function is one launch. A thread block takes a block of elements, and keeps them in shared
// memory.
#include "cuda/compressors/blocktopk/blocktopk.h"

#include "cuda/bytes.cuh"
#include "cuda/compressors/blocktopk/levels.cuh"
#include "cuda/compressors/blocktopk/select.cuh"
#include "cuda/correction.cuh"
#include "cuda/grid.cuh"
#include "cuda/packed.cuh"
#include "cuda/settle.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The shared memory of compress, for one block of elements.
template <typename T>
struct BlockMemory {
  // The value of index j in the payload.
  __device__ T value(uint32 j) const { return with_one_nan(p[indices[j]]); }

  T p[blocktopk_most_block];
  union {
    uint32 counts[digit_values];             // of the search
    uint16 indices[blocktopk_most_block];  // of the elements that are sent, after the search
  };
  SearchState<T> search;
  BlocktopkLevels<T> levels;
  T split;
  T residual_factor;  // here, because `sweep` has no register left
};

// Computes p of the block of elements from `begin`, and replaces its residual by p.
template <typename T>
__device__ void sweep(const BlocktopkEncoding<T>& call, const T& residual_factor, Size begin, uint32 size, T* p) {
  const uint32 part = static_cast<uint32>(call.format.block) / warps, first = warp() * part;
#pragma unroll 1
  for (uint32 row = first; row < first + part; row += rows_ahead<T> * warp_lanes) {
    const Column column = Column::between(begin + row, begin + (size < first + part ? size : first + part));
    const Loaded<T> loaded(call, column);
#pragma unroll
    for (int r = 0; r < rows_ahead<T>; ++r) {
      const T x = correct(call, residual_factor, loaded, column, r, [](T residual) { return residual; });
      if (column.has(r)) p[column[r] - begin] = x;
    }
  }
}

// Stores p of a block, after a `__syncthreads`. It is apart from `sweep`, which has no register left.
template <typename T>
__device__ void keep(const BlocktopkEncoding<T>& call, Size begin, uint32 size, const T* p) {
  if (call.memory[0] == nullptr) return;
#pragma unroll 1
  for (uint32 i = threadIdx.x; i < size; i += block_threads) call.memory[0][begin + i] = p[i];
}

// Writes the scales of a record, and keeps the levels in shared memory.
template <typename T>
__device__ void write_scales(const BlocktopkFormat& format, uint8* record, BlockMemory<T>& memory, uint32 kept) {
  const auto value = [&](uint32 j) { return memory.value(j); };
  T split = 0;
  const BlocktopkLevels<T> levels = format.scales() == 2 ? two_levels<T>(kept, value, split)
                                                         : even_levels<T>(kept, format.value_bits, value);
  if (lane() != 0) return;
  memory.levels = levels;
  memory.split = split;
  write(record, 0, levels.scale);
  if (format.scales() == 2) write(record, 1, levels.high);
}

// Writes value x number j of a record that has no scale. Returns the value that it decodes to.
template <typename T>
__device__ T write_value(const BlocktopkFormat& format, uint8* values, uint32 j, T x) {
  if (format.value_bits == 32) {
    write(values, j, x);
    return x;
  }
  const uint16 half = finite_half_bits(x);
  write(values, j, half);
  return half_value(half);
}

// Writes the record of a block. Replaces the residuals of the elements that are sent; `residual` may be null. Returns
// whether this thread's elements are finite. All threads of the block must call it.
template <typename T>
__device__ bool write_record(const BlocktopkFormat& format, uint8* record, BlockMemory<T>& memory, uint32 kept,
                             T* residual) {
  write_packed(record + format.indices_at<T>(), kept, format.index_bits, [&](uint32 j) { return memory.indices[j]; });
  uint8* const values = record + format.values_at<T>(kept);
  const bool has_scales = format.scales() != 0;
  if (has_scales) {
    if (warp() == 0) write_scales(format, record, memory, kept);
    __syncthreads();
    write_packed(values, kept, format.value_bits,
                 [&](uint32 j) { return memory.levels.number(memory.value(j), memory.split); });
  }
  bool finite = true;
  for (uint32 j = threadIdx.x; j < kept; j += block_threads) {
    const T x = memory.value(j);
    const T decoded = has_scales ? memory.levels.value(memory.levels.number(x, memory.split))
                                 : write_value(format, values, j, x);
    if (residual != nullptr) residual[memory.indices[j]] = x - decoded;
    finite = finite && is_finite(x) && is_finite(decoded);
  }
  return finite;
}

// Makes a payload of finite values one that is not finite, as on the CPU.
template <typename T>
__device__ void spoil(const BlocktopkFormat& format, uint8* payload) {
  uint8* const values = payload + format.values_at<T>(format.kept_of(0));
  if (format.scales() != 0) {
    for (Size s = 0; s < format.scales(); ++s) write(payload, s, not_a_number<T>());
  } else if (format.value_bits == 16) {
    write(values, 0, half_bits(not_a_number<float>()));
  } else {
    write(values, 0, not_a_number<T>());
  }
}

template <typename T>
__device__ void compress(const BlocktopkEncoding<T>& call) {
  __shared__ BlockMemory<T> memory;
  const BlocktopkFormat& format = call.format;
  if (threadIdx.x == 0) memory.residual_factor = residual_factor_of(call);
  __syncthreads();
  bool finite = true;
  for (Size index = blockIdx.x; index < format.blocks(); index += gridDim.x) {
    const Size begin = index * format.block;
    const auto size = static_cast<uint32>(format.size_of(index)), kept = static_cast<uint32>(format.kept_of(index));
    sweep(call, memory.residual_factor, begin, size, memory.p);
    find_limit(memory.search, memory.counts, memory.p, size, kept);
    keep(call, begin, size, memory.p);
    list_largest(memory.p, size, static_cast<uint32>(format.block), memory.search.limit, memory.search.rank,
                 memory.indices);
    T* const residual = call.memory[0] != nullptr ? call.memory[0] + begin : nullptr;
    finite = write_record(format, call.payload + format.record_at<T>(index), memory, kept, residual) && finite;
    __syncthreads();  // the next block of elements overwrites the shared memory
  }
  if (!finite) say_not_finite(call.ticket);

  if (!last_block(call.ticket)) return;
  finite = all_finite(call.ticket);
  if (!finite && threadIdx.x == 0) spoil<T>(format, call.payload);
  settle(call, call.bytes, finite);
}

// Reads a record.
template <typename T>
class Record {
 public:
  __device__ Record(const BlocktopkFormat& format, const uint8* record, uint32 kept)
      : indices_(record + format.indices_at<T>()),
        values_(record + format.values_at<T>(kept)),
        index_bits_(format.index_bits),
        levels_{format.value_bits, 0, 0} {
    if (format.scales() != 0) levels_.scale = read<T>(record);
    if (format.scales() == 2) levels_.high = read<T>(record, 1);
  }

  __device__ bool scales_are_finite() const { return is_finite(levels_.scale) && is_finite(levels_.high); }

  __device__ uint32 index(uint32 j) const { return packed_number(indices_, j, index_bits_); }

  __device__ T value(uint32 j) const {
    if (levels_.bits == 32) return read<T>(values_, j);
    if (levels_.bits == 16) return half_value(read<uint16>(values_, j));
    const uint32 bit = j * levels_.bits;
    return levels_.value(values_[bit / 8] >> bit % 8 & ((1u << levels_.bits) - 1));
  }

 private:
  const uint8 *const indices_, *const values_;
  const int index_bits_;
  BlocktopkLevels<T> levels_;
};

template <typename T>
__device__ void decompress(const BlocktopkDecoding<T>& call) {
  const BlocktopkFormat& format = call.format;
  bool finite = true;
  for (Size index = blockIdx.x; index < format.blocks(); index += gridDim.x) {
    T* const out = call.out + index * format.block;
    const auto kept = static_cast<uint32>(format.kept_of(index));
    if (!call.add) fill_with_zeros(out, format.size_of(index));
    for (Size i = 0; i < call.count; ++i) {
      __syncthreads();  // other threads have written their parts of the sum
      const Record<T> record(format, call.payloads + i * call.stride + format.record_at<T>(index), kept);
      finite = finite && record.scales_are_finite();
      for (uint32 j = threadIdx.x; j < kept; j += block_threads) {
        T& sum = out[record.index(j)];
        const T x = record.value(j);
        sum = sum + x;
        finite = finite && is_finite(x);
      }
    }
  }
  settle(call, finite);
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc

using namespace gluon_gc::cuda;

GLUON_GC_KERNEL blocktopk_compress_float32(Batch<BlocktopkEncoding<float>> calls) { compress(mine(calls)); }
GLUON_GC_KERNEL blocktopk_compress_float64(Batch<BlocktopkEncoding<double>> calls) { compress(mine(calls)); }
GLUON_GC_KERNEL blocktopk_decompress_float32(Batch<BlocktopkDecoding<float>> calls) { decompress(mine(calls)); }
GLUON_GC_KERNEL blocktopk_decompress_float64(Batch<BlocktopkDecoding<double>> calls) { decompress(mine(calls)); }
