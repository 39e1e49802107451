// Sums of payloads that have indices and values: a launch that begins the sum, and one for each payload.
#pragma once

#include "cuda/bytes.cuh"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Nothing is added yet to what the sum begins with. `bytes` are those of all messages in use.
template <typename T>
__device__ void begin_sum(const Decoding<T>& call, Size bytes) {
  if (!call.add) for_each_element(call.n, [&](Size i) { call.out[i] = 0; });
  if (call.status != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *call.status = {bytes, 1};
}

// Adds value(i) to the element that indices[i] is, for `count` indices that differ.
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
