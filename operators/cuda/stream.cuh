// Draws from the random stream, core/generator.h, at many places side by side.
//
// Each lane draws for a segment, some draws side by side, and first jumps there. A jump is made in steps of 32,
// 32^2, ... segments of 32 draws, of each so many as a digit of the whole says: 128 draws of the generator, of
// whose states the digit's polynomial adds up some.
#pragma once

#include "core/jump_polynomial.h"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// What lanes jump by are multiples of this.
constexpr int stream_segment = 32;

// x^(stream_segment * 32^i * digit) mod p: up to 2^40 draws, more than a GPU has values.
struct JumpTable {
  static constexpr int digits = 7, base = 32;

  constexpr JumpTable() : of{} {
    JumpPolynomial one_step = {{1ull << stream_segment, 0}};
    for (int i = 0; i < digits; ++i) {
      of[i][0] = {{1, 0}};
      for (int digit = 1; digit < base; ++digit) of[i][digit] = product(of[i][digit - 1], one_step);
      one_step = product(of[i][base - 1], one_step);
    }
  }

  JumpPolynomial of[digits][base];
};
__constant__ constexpr JumpTable jump_table;

// Moves on by so many segments. Lanes whose numbers differ in the lowest digit alone stay together.
__device__ inline void jump(RandomStream& stream, Size segments) {
  for (int i = 0; segments != 0; ++i, segments /= JumpTable::base) {
    const int digit = segments % JumpTable::base;
    if (digit == 0) continue;
    RandomStream sum = {};
#pragma unroll 1
    for (int word = 0; word < 2; ++word) {
      uint64 steps = jump_table.of[i][digit].word[word];
#pragma unroll 4
      for (int bit = 0; bit < 64; ++bit, steps >>= 1) {
        const uint64 set = -(steps & 1);
        sum.state[0] ^= set & stream.state[0];
        sum.state[1] ^= set & stream.state[1];
        stream();
      }
    }
    stream = sum;
  }
}

// Calls visit(first, indices) for `count` draws from n elements: some at a time, `first` and those after it, of which
// some may be past the end. A lane has a segment.
template <int at_a_time, typename Visit>
__device__ inline void for_each_draw(const RandomStream& begin, Size n, Size count, Visit visit) {
  if (count == 0) return;
  const Modulo modulo(n);
  for_each_tile(count, [&](Size t) {
    const Size segment = t * (tile / stream_segment) + lane();
    RandomStream stream = begin;
    jump(stream, segment);
#pragma unroll 1
    for (int i = 0; i < stream_segment; i += at_a_time) {
      Size indices[at_a_time];
#pragma unroll
      for (int j = 0; j < at_a_time; ++j) indices[j] = modulo(stream());
      visit(segment * stream_segment + i, indices);
    }
  });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
