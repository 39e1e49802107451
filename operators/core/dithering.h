// dithering: each element rounded at random to one of a few levels, so that the mean is the element.
//
// With s levels, y = |x| / norm * s is between two whole numbers and becomes the upper one with the
// probability that makes the mean y (linear), or |x| / norm * 2^(s - 1) does so between two of 0 and the
// powers of two (natural). An element is then a symbol from 0 to s (0, 2^0, ..., 2^(s - 1) for natural) and
// a sign, which is plus for symbol 0. The norm is max |x| or the l2 norm.
//
// A payload is little-endian and may start at any address: its length in bytes, itself included, and its
// Coding, both uint32; the norm as one T; then
//   fixed: for every 16 elements uint16 bit planes: signs, then the bits of the symbols, the lowest first;
//   elias: for every stream_block elements a uint32, the number of bits of a segment; then the segments, each
//     of whole bytes. A segment has, for each element whose symbol s is not 0, the distance from the one
//     before it (or from the element before the segment) and s, both as in elias.h, with the sign between.
// What is left of the capacity has no meaning. Results are the same bits for every instruction set and number
// of threads. n must be below 2^30.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/feedback.h"
#include "core/isa.h"
#include "core/stream.h"

namespace gluon_gc {

enum class Coding : std::uint32_t { fixed, elias };

struct DitheringConfig {
  std::uint32_t levels;
  bool natural;
  bool l2;
  bool fixed_width;  // never Elias coding, even if that is smaller
};

// What s may be: the symbols of natural fit into a table, y of linear has a bit after the point in float.
inline bool dithering_allows(std::size_t levels, bool natural) {
  return levels >= 1 && levels < (natural ? 32 : 1 << 23);
}

// What a symbol takes without its sign.
inline int dithering_symbol_bits(std::size_t levels) {
  int bits = 0;
  for (; levels != 0; levels >>= 1) ++bits;
  return bits;
}

template <typename T>
constexpr std::size_t dithering_header_bytes = 2 * sizeof(std::uint32_t) + sizeof(T);

// The length of a payload in fixed width, which no payload exceeds; a multiple of 4.
template <typename T>
std::size_t dithering_capacity(std::size_t n, std::size_t levels) {
  const std::size_t groups = n / 16 + (n % 16 != 0), planes = 1 + dithering_symbol_bits(levels);
  return (dithering_header_bytes<T> + 2 * groups * planes + 3) / 4 * 4;
}

// Room in bytes for the Elias code of a block: the worst are elements without a 0 among them.
inline std::size_t dithering_scratch_bytes(std::size_t levels) {
  return stream_block * (2 + 2 * dithering_symbol_bits(levels)) / 8 + 8;
}

inline std::size_t dithering_blocks(std::size_t n) { return n / stream_block + (n % stream_block != 0); }

// Memory for the kernel.
struct DitheringWorkspace {
  const Stream* streams;     // where each segment's draws begin
  std::uint8_t* scratch;     // dithering_scratch_bytes for each block, uninitialised
  std::uint32_t* code_bits;  // one for each block, uninitialised
};

// The kernels of one instruction set, which the functions below call.
template <Isa isa, typename T>
struct DitheringKernels {
  static double compress(const T* gradient, std::size_t n, T gradient_scale, const DitheringConfig& config,
                         const FeedbackState<T>& state, const DitheringWorkspace& workspace, void* payload,
                         int threads);
  static bool valid(const void* payload, std::size_t capacity, std::size_t n, const DitheringConfig& config);
  static void sum(const void* payloads, std::size_t stride_bytes, std::size_t count, std::size_t n,
                  const DitheringConfig& config, bool add, T* out, int threads);
};

extern template struct DitheringKernels<Isa::scalar, float>;
extern template struct DitheringKernels<Isa::avx2, float>;
extern template struct DitheringKernels<Isa::avx512, float>;
extern template struct DitheringKernels<Isa::scalar, double>;
extern template struct DitheringKernels<Isa::avx2, double>;
extern template struct DitheringKernels<Isa::avx512, double>;

// Compresses p, which is g = gradient * gradient_scale after momentum and feedback, into a payload with room
// for dithering_capacity bytes, and takes n draws. Returns the norm. It is not finite if an element is not:
// then those elements decode to the norm and their residual is 0, and all others decode to 0. The l2 norm of
// doubles overflows where an element is above 1e154: all decode to 0 then; that of floats is at most
// the largest float.
//
// Two passes, since the norm comes first: reads gradient twice, 8 bytes an element of float. With feedback it
// reads gradient once, and residual twice, and writes residual twice, 20 bytes; momentum adds 8, and 4 more
// without feedback. The second pass is bound by its arithmetic, half of which makes the draws.
template <typename T>
double dithering_compress(const T* gradient, std::size_t n, T gradient_scale, const DitheringConfig& config,
                          const FeedbackState<T>& state, Stream& stream, void* payload, int threads,
                          Isa isa = best_isa()) {
  const std::size_t blocks = dithering_blocks(n);
  const std::size_t scratch_bytes = config.fixed_width ? 0 : blocks * dithering_scratch_bytes(config.levels);
  const std::unique_ptr<Stream[]> streams(new Stream[stream_states(n)]);
  const std::unique_ptr<std::uint8_t[]> scratch(new std::uint8_t[scratch_bytes]);
  const std::unique_ptr<std::uint32_t[]> code_bits(new std::uint32_t[blocks]);
  draw_segments(stream, n, streams.get());
  const DitheringWorkspace workspace{streams.get(), scratch.get(), code_bits.get()};
  return dispatch(isa, [&](auto chosen) {
    return DitheringKernels<chosen, T>::compress(gradient, n, gradient_scale, config, state, workspace,
                                                 payload, threads);
  });
}

// Whether what a payload says of its length fits `capacity` bytes, and its symbols are of n elements, as
// those below take for granted. Decodes an Elias code.
template <typename T>
bool dithering_valid(const void* payload, std::size_t capacity, std::size_t n, const DitheringConfig& config,
                     Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) {
    return DitheringKernels<chosen, T>::valid(payload, capacity, n, config);
  });
}

// out = D(payload 0) + D(payload 1) + ..., added in that order in T; zeros if count is 0. Payload i starts
// at payloads + i * stride_bytes. Reads the payloads, writes out, one pass.
template <typename T>
void dithering_decompress_sum(const void* payloads, std::size_t stride_bytes, std::size_t count,
                              std::size_t n, const DitheringConfig& config, T* out, int threads,
                              Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) {
    DitheringKernels<chosen, T>::sum(payloads, stride_bytes, count, n, config, false, out, threads);
  });
}

// out = D(payload). Reads payload, writes out, one pass.
template <typename T>
void dithering_decompress(const void* payload, std::size_t n, const DitheringConfig& config, T* out,
                          int threads, Isa isa = best_isa()) {
  dithering_decompress_sum(payload, 0, 1, n, config, out, threads, isa);
}

// out += D(payload). Reads payload, reads and writes out, of an Elias code's only what is not 0; one pass.
template <typename T>
void dithering_decompress_add(const void* payload, std::size_t n, const DitheringConfig& config, T* out,
                              int threads, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) {
    DitheringKernels<chosen, T>::sum(payload, 0, 1, n, config, true, out, threads);
  });
}

}  // namespace gluon_gc
