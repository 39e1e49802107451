// Payload bytes as words that survive a sum with 0.0.
//
// MXNet's server adds 0.0 to every word that passes through it, as to a float, which keeps all bits of a
// normal float only: one whose exponent, bits 23 to 30, is neither 0 nor 255. So the payload travels in blocks
// of 127 little-endian words behind a header, the last one filled up with zeros, of which only words that hold
// payload travel. The exponents of a block are combined by exclusive or with the least number that makes all
// of them normal. It is below 128, since a word forbids one of the 128 pairs of c and 255 - c. The header is
// 2.0 with that number in its last bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace gluon_gc {

constexpr std::size_t framing_block_words = 128, framing_block_bytes = 4 * (framing_block_words - 1);

// A message whose length varies begins with that length, as a uint32.
constexpr std::size_t message_length_bytes = sizeof(std::uint32_t);

// The most words of a row of such a message: each row costs 12 bytes more on the wire, and the last one is seldom
// full.
constexpr std::size_t most_row_words = 256;

// The most bytes of a message, of those of its parts.
constexpr std::size_t message_bytes(std::size_t parts_bytes, bool varies) {
  return parts_bytes + (varies ? message_length_bytes : 0);
}

// The kernels of one instruction set, which the functions below call.
template <Isa isa>
struct FramingKernels {
  static void frame(const std::uint8_t* payload, std::size_t nbytes, std::uint32_t* words, int threads);
  static void unframe(const std::uint32_t* words, std::size_t nbytes, std::uint8_t* payload, int threads);
  static bool framed(const std::uint32_t* words, std::size_t n);
};

extern template struct FramingKernels<Isa::scalar>;
extern template struct FramingKernels<Isa::avx2>;
extern template struct FramingKernels<Isa::avx512>;

// The number of words that carry nbytes.
inline std::size_t frame_words(std::size_t nbytes) {
  const std::size_t left = nbytes % framing_block_bytes;
  return nbytes / framing_block_bytes * framing_block_words + (left + 3) / 4 + (left != 0);
}

// Reads nbytes of payload, writes frame_words(nbytes) words, one pass: 1.01 bytes written a byte read.
inline void frame(const std::uint8_t* payload, std::size_t nbytes, std::uint32_t* words, int threads = 1,
                  Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { FramingKernels<chosen>::frame(payload, nbytes, words, threads); });
}

// Reads frame_words(nbytes) words, which must be framed, and writes nbytes of payload, one pass: 1.01 bytes
// read a byte written.
inline void unframe(const std::uint32_t* words, std::size_t nbytes, std::uint8_t* payload,
                    int threads = 1, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { FramingKernels<chosen>::unframe(words, nbytes, payload, threads); });
}

// Whether these are blocks of normal floats behind headers, to be asked of what a network brought. Reads n
// words, one pass.
inline bool framed(const std::uint32_t* words, std::size_t n, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) { return FramingKernels<chosen>::framed(words, n); });
}

}  // namespace gluon_gc
