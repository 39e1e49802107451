// The random stream that workers and servers share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/generator.h"

namespace gluon_gc {

// Moves on by `count` draws: 0.15 us for each bit that is set in it.
void jump(Stream& stream, std::uint64_t count);

// Moves on by worker * 2^64 draws.
void jump_to_worker(Stream& stream, std::uint64_t worker);

// Kernels draw at many places of the stream side by side, a segment apart: one lane of a vector each. A
// segment is an odd number of cache lines of float, so that what the lanes load is not all in one set of the
// cache; and 2^20 elements are almost a whole number of blocks, which threads can share evenly.
constexpr std::size_t stream_lanes = 32;
constexpr std::size_t stream_segment = 16 * 129;
constexpr std::size_t stream_block = stream_lanes * stream_segment;

// The states that draw_segments writes: those that n draws begin a segment with, and more for whole blocks.
[[gnu::always_inline]] inline std::size_t stream_states(std::size_t n) { return (n / stream_block + 1) * stream_lanes; }

// Writes the states at draws 0, stream_segment, 2 stream_segment, ... of the n draws from here on, and more for
// whole blocks. 11 ns a state.
void draw_segments(const Stream& stream, std::size_t n, Stream* states);

}  // namespace gluon_gc
