// Payload bytes as words that survive a sum with 0.0.
//
// MXNet's server adds 0.0 to every word that passes through it, as to a float, which keeps all bits of a
// normal float only. So a word carries 30 bits of payload around a fixed bit 30 = 1 and bit 29 = 0, which
// makes it a normal float whatever the payload. The payload is read as a little-endian stream of bits;
// 60 bytes are 16 words, and unused bits of the last word are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace gluon_gc {

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

// The number of words that carry nbytes: ceil(8 nbytes / 30).
inline std::size_t frame_words(std::size_t nbytes) {
  return nbytes / 60 * 16 + (nbytes % 60 * 8 + 29) / 30;
}

// Reads nbytes of payload, writes frame_words(nbytes) words, one pass: 1.07 bytes written a byte read.
inline void frame(const std::uint8_t* payload, std::size_t nbytes, std::uint32_t* words, int threads = 1,
                  Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { FramingKernels<chosen>::frame(payload, nbytes, words, threads); });
}

// Reads frame_words(nbytes) words, each of which must be framed, and writes nbytes of payload, one pass:
// 1.07 bytes read a byte written.
inline void unframe(const std::uint32_t* words, std::size_t nbytes, std::uint8_t* payload,
                    int threads = 1, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { FramingKernels<chosen>::unframe(words, nbytes, payload, threads); });
}

// Whether all words have the fixed bits, to be asked of what a network brought. Reads n words, one pass.
inline bool framed(const std::uint32_t* words, std::size_t n, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) { return FramingKernels<chosen>::framed(words, n); });
}

}  // namespace gluon_gc
