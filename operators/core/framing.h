// Framing: payload bytes as float32 words that MXNet's server does not alter.
//
// The server adds 0.0 to every word, as to a float. This keeps all bits of a normal float only, whose exponent (bits 23
// to 30) is neither 0 nor 255. So a payload is sent in blocks:
//
//   [header] [up to 127 little-endian words of payload]
//
// The exponents in a block are combined by exclusive or with the least number c that makes all of them normal. Such a
// c < 128 exists: a word forbids the pair of c = its exponent and c = 255 - its exponent, so 127 words forbid at most
// 127 of the 128 pairs. The header is the float 2.0 with c in its last bits. The last block is filled up with zeros,
// but only its words with payload are sent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace gluon_gc {

constexpr std::size_t framing_block_words = 128, framing_block_bytes = 4 * (framing_block_words - 1);

// A message whose length varies begins with that length, as a uint32.
constexpr std::size_t message_length_bytes = sizeof(std::uint32_t);

// The most words in a row of such a message. Shorter rows have more overhead, 12 bytes on the wire for each row. Longer
// rows waste more in the last row, which is seldom full.
constexpr std::size_t most_row_words = 256;

// The largest size of a message, from the total size of its parts.
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

// The number of words that carry a payload of nbytes.
inline std::size_t frame_words(std::size_t nbytes) {
  const std::size_t left = nbytes % framing_block_bytes;
  return nbytes / framing_block_bytes * framing_block_words + (left + 3) / 4 + (left != 0);
}

// Frames a payload. One pass: reads nbytes, writes frame_words(nbytes) words, 1.01 bytes for each byte read.
inline void frame(const std::uint8_t* payload, std::size_t nbytes, std::uint32_t* words, int threads = 1,
                  Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { FramingKernels<chosen>::frame(payload, nbytes, words, threads); });
}

// The inverse of frame. The words must be framed. One pass: reads frame_words(nbytes) words, writes nbytes.
inline void unframe(const std::uint32_t* words, std::size_t nbytes, std::uint8_t* payload,
                    int threads = 1, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { FramingKernels<chosen>::unframe(words, nbytes, payload, threads); });
}

// Whether n words from the network are well-formed: blocks of a header and normal floats. One pass: reads n words.
inline bool framed(const std::uint32_t* words, std::size_t n, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) { return FramingKernels<chosen>::framed(words, n); });
}

}  // namespace gluon_gc
