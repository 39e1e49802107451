// decompress of compressors whose payloads have all elements: the sum of the payloads.
#pragma once

#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Writes the sum of all payloads, `ahead` rows at a time. add(payload, tile, row, column, sum) adds the elements of one
// payload to sum, from this row of the tile on. All lanes call it together.
template <int ahead, typename T, typename Add>
__device__ inline void sum_payloads(const Decoding<T>& call, Add add) {
  for_each_tile(call.n, [&](Size t) {
#pragma unroll 1
    for (int row = 0; row < rows; row += ahead) {
      const Column column(t, row, call.n);
      T sum[ahead];
#pragma unroll
      for (int r = 0; r < ahead; ++r) {
        sum[r] = call.add && column.has(r) ? call.out[column[r]] : call.count == 0 ? T{0} : T{-0.0};
      }
#pragma unroll 1
      for (Size k = 0; k < call.count; ++k) add(call.payloads + k * call.stride, t, row, column, sum);
#pragma unroll
      for (int r = 0; r < ahead; ++r) {
        if (column.has(r)) call.out[column[r]] = sum[r];
      }
    }
  });
}

// Writes the status, on one thread of the grid. look(payload, status) updates it for each payload.
template <typename T, typename Look>
__device__ inline void say_status(const Decoding<T>& call, Look look) {
  if (call.status == nullptr || blockIdx.x != 0 || threadIdx.x != 0) return;
  Status status = {call.bytes, 1};
  for (Size k = 0; k < call.count; ++k) look(call.payloads + k * call.stride, status);
  *call.status = status;
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
