// The end of a call, the same for all compressors, as in core/abi_codec.h for the CPU.
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

// A warp that meets a value that is not finite says so, and the last block's threads ask together whether none did.
__device__ inline void say_not_finite(uint32* ticket) { ticket[1] = 1; }

__device__ inline bool all_finite(uint32* ticket) {
  const bool finite = published(ticket + 1) == 0;
  __syncthreads();
  if (threadIdx.x == 0) ticket[1] = 0;
  return finite;
}

// The last block's threads call it together when the payload is written, of which `bytes` are in use: it writes
// the ratio in front of it and the status, and forgets what is kept if an element is not finite. Nothing else may
// write to momentum and memory then.
template <typename T>
__device__ inline void settle(const Encoding<T>& call, Size bytes, bool finite) {
  if (!finite) {
    if (call.momentum != nullptr) fill_with_zeros(call.momentum, call.n);
    for (int i = 0; i < 2; ++i) {
      if (call.memory[i] != nullptr) fill_with_zeros(call.memory[i], call.memory_elements[i]);
    }
  }
  if (threadIdx.x != 0) return;
  if (call.payload != call.message) {
    write(call.message, 0, call.ratio_from != nullptr ? read<double>(call.ratio_from) : call.ratio);
  }
  if (call.status != nullptr) *call.status = {bytes, finite};
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
