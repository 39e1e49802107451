// onebit: the sign of each element and one scale.
//
// A payload of n elements is ceil(n / 32) little-endian uint32 words, bit i % 32 of word i / 32 set where
// element i is negative (0, -0.0 and NaN are not) and unused bits zero, then the scale as one T. It may
// start at any address. Results are the same bits for every instruction set and number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace gluon_gc {

inline std::size_t onebit_words(std::size_t n) { return n / 32 + (n % 32 != 0); }

template <typename T>
std::size_t onebit_payload_bytes(std::size_t n) {
  return onebit_words(n) * sizeof(std::uint32_t) + sizeof(T);
}

// What momentum and error feedback keep between calls. A null `momentum` or `corrected` turns it off.
template <typename T>
struct OnebitState {
  T* momentum;   // n: m = mu m + g, then g = g + mu m (Nesterov, before feedback)
  T mu;
  T* corrected;  // n: p of the previous call. The residual is e = p - D(p), formed when it is needed;
  T* scale;      // 1: and this is what D(p) decodes to. A residual to start from is p = e with scale 0.
  T ratio;       // p = g + ratio e (1: vanilla; previous / current learning rate: corrected)
};

// The kernels of one instruction set, which the functions below call.
template <Isa isa, typename T>
struct OnebitKernels {
  static double compress(const T* gradient, std::size_t n, T gradient_scale, bool scaling,
                         const OnebitState<T>& state, void* payload, int threads);
  static void decompress(const void* payload, std::size_t n, T* out, int threads);
  static void decompress_add(const void* payload, std::size_t n, T* out, int threads);
  static void decompress_sum(const void* payloads, std::size_t stride_bytes, std::size_t count,
                             std::size_t n, T* out, int threads);
  static void residual(const T* corrected, T scale, std::size_t n, T* residual);
};

extern template struct OnebitKernels<Isa::scalar, float>;
extern template struct OnebitKernels<Isa::avx2, float>;
extern template struct OnebitKernels<Isa::avx512, float>;
extern template struct OnebitKernels<Isa::scalar, double>;
extern template struct OnebitKernels<Isa::avx2, double>;
extern template struct OnebitKernels<Isa::avx512, double>;

// Compresses p, which is g = gradient * gradient_scale after momentum and feedback. The scale is the mean
// of |p| with scaling (0 if n is 0), else 1. Returns the sum of |p| in float64, which is not finite if an
// element is not.
//
// Reads gradient; reads and writes momentum, corrected and scale; writes payload. One pass over each:
// 4 bytes an element of float read, 8 more for feedback and 8 more for momentum, 1/8 written.
template <typename T>
double onebit_compress(const T* gradient, std::size_t n, T gradient_scale, bool scaling,
                       const OnebitState<T>& state, void* payload, int threads, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) {
    return OnebitKernels<chosen, T>::compress(gradient, n, gradient_scale, scaling, state, payload,
                                              threads);
  });
}

// out = D(payload). Reads payload, writes out, one pass: 1/8 byte an element read, 4 written.
template <typename T>
void onebit_decompress(const void* payload, std::size_t n, T* out, int threads, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { OnebitKernels<chosen, T>::decompress(payload, n, out, threads); });
}

// out += D(payload). Reads payload, reads and writes out, one pass: 4 1/8 bytes an element read, 4 written.
template <typename T>
void onebit_decompress_add(const void* payload, std::size_t n, T* out, int threads,
                           Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { OnebitKernels<chosen, T>::decompress_add(payload, n, out, threads); });
}

// out = D(payload 0) + D(payload 1) + ..., added in that order in T; zeros if count is 0. Payload k starts
// at payloads + k * stride_bytes. Reads the payloads, writes out, one pass: count / 8 bytes an element
// read, 4 written.
template <typename T>
void onebit_decompress_sum(const void* payloads, std::size_t stride_bytes, std::size_t count,
                           std::size_t n, T* out, int threads, Isa isa = best_isa()) {
  if (count == 1) return onebit_decompress(payloads, n, out, threads, isa);  // which has less to do
  dispatch(isa, [&](auto chosen) {
    OnebitKernels<chosen, T>::decompress_sum(payloads, stride_bytes, count, n, out, threads);
  });
}

// residual = corrected - D(corrected), what a checkpoint stores; residual may be corrected itself. Reads
// corrected, writes residual, one pass: 4 bytes an element read, 4 written.
template <typename T>
void onebit_residual(const T* corrected, T scale, std::size_t n, T* residual, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { OnebitKernels<chosen, T>::residual(corrected, scale, n, residual); });
}

}  // namespace gluon_gc
