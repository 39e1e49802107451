// The random stream of core/stream.h, at many places side by side.
#pragma once

#include "core/stream_powers.h"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

__device__ constexpr Powers stream_powers;

struct Stream {
  // The next draw.
  __device__ uint64 operator()() {
    uint64 t = state[0];
    const uint64 s = state[1];
    t ^= t << 23;
    t ^= t >> 17;
    t ^= s ^ (s >> 26);
    state[0] = s;
    state[1] = t;
    return t + s;
  }

  // Moves on by `count` draws: 128 steps for each bit that is set in it.
  __device__ void jump(Size count) {
    for (int bit = 0; count >> bit != 0; ++bit) {
      if ((count >> bit & 1) == 0) continue;
      const Polynomial& steps = stream_powers.of[bit];
      Stream sum = {};
#pragma unroll 1
      for (int i = 0; i < degree; ++i) {
        const uint64 set = -uint64{steps[i]};
        sum.state[0] ^= set & state[0];
        sum.state[1] ^= set & state[1];
        (*this)();
      }
      *this = sum;
    }
  }

  uint64 state[2];
};

// Calls step(i, draw) for each of `count` draws, by one thread of the grid, some after each other.
template <typename Step>
__device__ inline void for_each_draw(const Stream& begin, Size count, Step step) {
  constexpr Size run = 64;
  for_each_element((count + run - 1) / run, [&](Size number) {
    Stream stream = begin;
    stream.jump(number * run);
    for (Size i = number * run; i < (number + 1) * run && i < count; ++i) step(i, stream());
  });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
