// Kernels that break a GPU's rules, or show behaviour that a GPU leaves open, for test_emulator.py.
#include "cuda/grid.cuh"

using namespace gluon_gc;
using namespace gluon_gc::cuda;

GLUON_GC_KERNEL two_barriers(uint32*) {
  if (threadIdx.x < 7) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

GLUON_GC_KERNEL thread_that_leaves(uint32*) {
  if (threadIdx.x == 3) return;
  __syncthreads();
}

GLUON_GC_KERNEL lane_that_leaves(uint32* out) {
  if (lane() == 5) return;
  *out = __ballot_sync(all_lanes, true);
}

GLUON_GC_KERNEL two_operations(uint32* out) {
  if (lane() < 16) {
    *out = __ballot_sync(all_lanes, true);
  } else {
    *out = __shfl_sync(all_lanes, 1, 0);
  }
}

GLUON_GC_KERNEL some_lanes(uint32* out) { *out = __ballot_sync(0xffff, true); }

GLUON_GC_KERNEL without_a_fence(uint32* out) {
  __syncthreads();
  if (threadIdx.x == 0) atomicInc(out, 100);
}

GLUON_GC_KERNEL operations(uint32* out) {
  const uint32 me = lane();
  out[threadIdx.x] = __ballot_sync(all_lanes, me % 3 == 0);
  out[block_threads + threadIdx.x] = __shfl_sync(all_lanes, 10 * me, 7);
  const double sent = __shfl_xor_sync(all_lanes, 0.5 + threadIdx.x, 5);
  out[2 * block_threads + threadIdx.x] = static_cast<uint32>(2 * sent);
  out[3 * block_threads + threadIdx.x] = __shfl_up_sync(all_lanes, uint64{threadIdx.x}, 4);
  out[4 * block_threads + threadIdx.x] = 100 * __popc(0xf0f0) + __ffs(me << 2);
  out[5 * block_threads + threadIdx.x] = me;
  __syncwarp();
  out[6 * block_threads + threadIdx.x] = out[5 * block_threads + (threadIdx.x ^ 31)];
}

GLUON_GC_KERNEL order(uint32* out) {
  out[++out[0]] = (blockIdx.y * gridDim.x + blockIdx.x) * block_threads + threadIdx.x;
}

GLUON_GC_KERNEL grid(uint32* out) { *out = gridDim.x; }

// Counts threads that see another block's shared memory, and blocks whose shared memory starts as zeros.
template <typename Value>
__device__ void use_shared_memory(Value* out) {
  __shared__ Value mine[2];
  if (threadIdx.x == 0) {
    if (mine[0] == 0 || mine[1] == 0) ++out[1];
    mine[0] = mine[1] = blockIdx.x;
  }
  for (int turn = 0; turn < 20; ++turn) {
    __syncthreads();
    if (mine[0] != blockIdx.x || mine[1] != blockIdx.x) ++out[0];
  }
}

GLUON_GC_KERNEL shared_memory(uint32* out) { use_shared_memory(out); }
