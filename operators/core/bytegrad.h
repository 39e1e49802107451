// bytegrad: one byte an element, which says where it is between the least and the largest of all.
//
// With lo = min x and hi = max x, 255 even steps lead from lo to hi. An element is the whole number of steps
// nearest to it, ties to even, and decodes to lo + q (hi - lo) / 255: to lo or hi itself at the ends.
//
// A payload is little-endian and may start at any address: its length in bytes, itself included, as a uint32;
// lo and hi as T; then, if lo < hi, a byte an element. What is left of the capacity has no meaning. Results
// are the same bits for every instruction set and number of threads. n must be what bytegrad_allows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/feedback.h"
#include "core/isa.h"

namespace gluon_gc {

template <typename T>
constexpr std::size_t bytegrad_header_bytes = sizeof(std::uint32_t) + 2 * sizeof(T);

// The most bytes of a payload.
template <typename T>
std::size_t bytegrad_capacity(std::size_t n) {
  return bytegrad_header_bytes<T> + n;
}

// Whether the length of a payload of n elements is a uint32.
template <typename T>
bool bytegrad_allows(std::size_t n) {
  return n <= UINT32_MAX - bytegrad_header_bytes<T>;
}

// The kernels of one instruction set, which the functions below call.
template <Isa isa, typename T>
struct BytegradKernels {
  static T compress(const T* gradient, std::size_t n, T gradient_scale, const FeedbackState<T>& state,
                    void* payload, int threads);
  static bool valid(const void* payload, std::size_t capacity, std::size_t n);
  static void sum(const void* payloads, std::size_t stride_bytes, std::size_t count, std::size_t n, bool add,
                  T* out, int threads);
};

extern template struct BytegradKernels<Isa::scalar, float>;
extern template struct BytegradKernels<Isa::avx2, float>;
extern template struct BytegradKernels<Isa::avx512, float>;
extern template struct BytegradKernels<Isa::scalar, double>;
extern template struct BytegradKernels<Isa::avx2, double>;
extern template struct BytegradKernels<Isa::avx512, double>;

// Compresses p, which is g = gradient * gradient_scale after momentum and feedback, into a payload with room
// for bytegrad_capacity bytes. Returns the largest |p| (0 if n is 0), or a NaN if an element is not finite:
// lo and hi are then NaNs, and the residual is p.
//
// Two passes, since lo and hi come first: reads gradient twice and writes the payload, 9 bytes an element of
// float. With feedback it reads gradient once, residual twice and writes residual twice, 21 bytes; momentum
// adds 8, or 12 without feedback.
template <typename T>
T bytegrad_compress(const T* gradient, std::size_t n, T gradient_scale, const FeedbackState<T>& state,
                    void* payload, int threads, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) {
    return BytegradKernels<chosen, T>::compress(gradient, n, gradient_scale, state, payload, threads);
  });
}

// Whether the length of a payload is the one that it must have, and fits `capacity` bytes, as those below
// take for granted. Reads nothing but length, lo and hi.
template <typename T>
bool bytegrad_valid(const void* payload, std::size_t capacity, std::size_t n, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) { return BytegradKernels<chosen, T>::valid(payload, capacity, n); });
}

// out = D(payload 0) + D(payload 1) + ..., added in that order in T; zeros if count is 0. Payload i starts
// at payloads + i * stride_bytes. Reads the payloads, writes out, one pass.
template <typename T>
void bytegrad_decompress_sum(const void* payloads, std::size_t stride_bytes, std::size_t count, std::size_t n,
                             T* out, int threads, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) {
    BytegradKernels<chosen, T>::sum(payloads, stride_bytes, count, n, false, out, threads);
  });
}

// out = D(payload). Reads payload, writes out: 1 byte an element read, 4 of float written.
template <typename T>
void bytegrad_decompress(const void* payload, std::size_t n, T* out, int threads, Isa isa = best_isa()) {
  bytegrad_decompress_sum(payload, 0, 1, n, out, threads, isa);
}

// out += D(payload). Reads payload, reads and writes out: 5 bytes an element of float read, 4 written.
template <typename T>
void bytegrad_decompress_add(const void* payload, std::size_t n, T* out, int threads, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) {
    BytegradKernels<chosen, T>::sum(payload, 0, 1, n, true, out, threads);
  });
}

}  // namespace gluon_gc
