// Parallel draws from the random stream (core/generator.h).
//
// The stream is cut into segments of 32 draws. A lane jumps to the start of a segment, and then draws the segment:
//
//   draw      0         32        64              32 s
//             |---------|---------|----- ... -----|---------|
//   segment   0         1         2               s
//
// A jump over s segments splits s into digits of base 32: s = d0 + 32 d1 + 32^2 d2 + ... It jumps over d0, then 32 d1,
// then 32^2 d2 segments, and so on. Each of these jumps is a polynomial q over GF(2) from a table, with 128
// coefficients (core/jump_polynomial.h). The new state is the xor of the states after j steps of the generator, for
// every j with q[j] = 1. So a digit that is not 0 costs 128 steps.
#pragma once

#include "core/jump_polynomial.h"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Draws of a segment. All jumps are over whole segments.
constexpr int stream_segment = 32;

// power[i][digit] = x^(stream_segment * 32^i * digit) mod p. Seven digits reach 2^40 draws, more than a GPU has values.
struct JumpTable {
  static constexpr int digits = 7, base = 32;

  constexpr JumpTable() : power{} {
    JumpPolynomial one_step = {{1ull << stream_segment, 0}};
    for (int i = 0; i < digits; ++i) {
      power[i][0] = {{1, 0}};
      for (int digit = 1; digit < base; ++digit) power[i][digit] = product(power[i][digit - 1], one_step);
      one_step = product(power[i][base - 1], one_step);
    }
  }

  JumpPolynomial power[digits][base];
};
__constant__ constexpr JumpTable jump_table;

// Moves the stream on by a number of segments. Lanes whose numbers differ only in the lowest digit do not diverge.
__device__ inline void jump(RandomStream& stream, Size segments) {
  for (int i = 0; segments != 0; ++i, segments /= JumpTable::base) {
    const int digit = segments % JumpTable::base;
    if (digit == 0) continue;
    RandomStream sum = {};
#pragma unroll 1
    for (int word = 0; word < 2; ++word) {
      uint64 steps = jump_table.power[i][digit].word[word];
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

// Draws `count` indices below n, and calls visit(first, indices) for every at_a_time of them: indices[j] is draw
// first + j, which may be past the end. A lane draws a segment.
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
