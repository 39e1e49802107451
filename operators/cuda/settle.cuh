// The end of compress, the same for all compressors, and of decompress for some. core/abi_codec.h has them for the CPU.
#pragma once

#include "cuda/bytes.cuh"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename T>
__device__ inline void fill_with_zeros(T* values, Size n) {
  for (Size i = threadIdx.x; i < n; i += block_threads) values[i] = 0;
}

// A thread that finds a value that is not finite sets a flag in the ticket. All threads of the last block read the flag
// and reset it.
__device__ inline void say_not_finite(uint32* ticket) { ticket[1] = 1; }

__device__ inline bool all_finite(uint32* ticket) {
  const bool finite = published(ticket + 1) == 0;
  __syncthreads();
  if (threadIdx.x == 0) ticket[1] = 0;
  return finite;
}

// Finishes a call once the payload is written: writes the ratio in front of the payload, and the status. `bytes` of
// the message are in use. If an element is not finite, it sets momentum and memory to 0; nothing else may write to them
// at that time. All threads of the last block must call it.
template <typename T>
__device__ inline void settle(const Encoding<T>& call, Size bytes, bool finite) {
  if (!finite) {
    if (call.momentum != nullptr) fill_with_zeros(call.momentum, call.n);
    if (call.memory[0] != nullptr) fill_with_zeros(call.memory[0], call.n);
    if (call.memory[1] != nullptr) fill_with_zeros(call.memory[1], call.second_elements);
  }
  if (threadIdx.x != 0) return;
  if (call.header != 0) {
    write(call.payload - call.header, 0, call.ratio_from != nullptr ? read<double>(call.ratio_from) : call.ratio);
  }
  if (call.status != nullptr) *call.status = {bytes, finite};
}

// Finishes a decompress call in which each thread knows whether the elements that it decoded are finite: writes the
// status. All threads of the grid call it.
template <typename T>
__device__ inline void settle(const Decoding<T>& call, bool finite) {
  if (!finite) say_not_finite(call.ticket);
  if (!last_block(call.ticket)) return;
  finite = all_finite(call.ticket);
  if (call.status != nullptr && threadIdx.x == 0) *call.status = {call.bytes, finite};
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
