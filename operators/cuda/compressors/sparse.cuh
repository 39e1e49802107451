// Sums of sparse payloads, which have indices and values: one launch to begin the sum, and one for each payload.
#pragma once

#include "cuda/bytes.cuh"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Begins the sum: sets out to 0, unless `add`, and writes the status. `bytes` of all messages are in use.
template <typename T>
__device__ void begin_sum(const Decoding<T>& call, Size bytes) {
  if (!call.add) for_each_element(call.n, [&](Size i) { call.out[i] = 0; });
  if (call.status != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *call.status = {bytes, 1};
}

// Adds value(i) to element indices[i], for `count` distinct indices.
template <typename T, typename Value>
__device__ void add_elements(const Decoding<T>& call, const uint8* indices, Size count, Value value) {
  for_each_element(count, [&](Size i) {
    T& sum = call.out[read<uint32>(indices, i)];
    const T x = value(i);
    sum = sum + x;
    if (call.status != nullptr && !is_finite(x)) call.status->finite = 0;
  });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
