// Jumps in the random stream, and its division into segments that kernels draw from side by side.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/generator.h"

namespace gluon_gc {

// Advances the stream by `count` draws. Takes 0.15 us for each bit that is set in `count`.
void jump(Stream& stream, std::uint64_t count);

// Advances the stream by worker * 2^64 draws.
void jump_to_worker(Stream& stream, std::uint64_t worker);

// Kernels draw for 32 segments of the stream at once, one in each vector lane:
//
//   lane 0: draws 0, 1, ...   lane 1: draws stream_segment, stream_segment + 1, ...   and so on
//
// A segment of floats is an odd number of cache lines (129), so that the loads of the lanes fall into different sets of
// the cache. 2^20 elements are almost a whole number of blocks, so threads can share them evenly.
constexpr std::size_t stream_lanes = 32;
constexpr std::size_t stream_segment = 16 * 129;
constexpr std::size_t stream_block = stream_lanes * stream_segment;

// The number of states that draw_segments writes: one for each segment, rounded up to whole blocks.
[[gnu::always_inline]] inline std::size_t stream_states(std::size_t n) { return (n / stream_block + 1) * stream_lanes; }

// Writes the state at the start of each segment of the next n draws: at draw 0, stream_segment, 2 stream_segment, ...
// Writes stream_states(n) states; takes 11 ns for each.
void draw_segments(const Stream& stream, std::size_t n, Stream* states);

}  // namespace gluon_gc
