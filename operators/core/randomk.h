// randomk: k elements drawn at random, the same ones by everybody who draws from the same stream.
//
// A payload is an array of k values of T at any address, no indices: value i is that of the element which
// draw i is modulo n. An element that is drawn twice is in it twice, with the same value, and counts once
// where it is decoded; so the payload of a sum is the sum of the payloads. k may exceed n. Of no elements
// nothing is drawn, and the payload is zeros. Results are the same bits for every instruction set and
// number of threads.
#pragma once

#include <cstddef>
#include <memory>

#include "core/feedback.h"
#include "core/isa.h"
#include "core/stream.h"

namespace gluon_gc {

// The kernels of one instruction set, which the functions below call.
template <Isa isa, typename T>
struct RandomkKernels {
  static T compress(const T* gradient, std::size_t n, std::size_t k, T gradient_scale,
                    const FeedbackState<T>& state, Stream& stream, void* payload, int threads);
  static void decompress(const void* payload, std::size_t n, std::size_t k, const Stream& start, T* out,
                         int threads);
  static void add(const void* payload, std::size_t n, std::size_t k, const Stream& start, T* out,
                  T* scratch);
};

extern template struct RandomkKernels<Isa::scalar, float>;
extern template struct RandomkKernels<Isa::avx2, float>;
extern template struct RandomkKernels<Isa::avx512, float>;
extern template struct RandomkKernels<Isa::scalar, double>;
extern template struct RandomkKernels<Isa::avx2, double>;
extern template struct RandomkKernels<Isa::avx512, double>;

// Compresses p, which is g = gradient * gradient_scale after momentum and feedback, to the elements that the
// next k draws choose; without feedback, times n / k. Moves the stream on by k draws. Returns 0, or NaN if
// an element is not finite: with momentum or feedback any element of p, otherwise, since the others are not
// looked at, any that is sent.
//
// Without momentum and feedback it reads k elements. With them: reads gradient; reads and writes momentum and
// residual, one pass over each: 4 bytes an element of float read, 8 more for each of the two. Then it reads
// the k elements and writes the payload and k zeros.
template <typename T>
T randomk_compress(const T* gradient, std::size_t n, std::size_t k, T gradient_scale,
                   const FeedbackState<T>& state, Stream& stream, void* payload, int threads,
                   Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) {
    return RandomkKernels<chosen, T>::compress(gradient, n, k, gradient_scale, state, stream, payload,
                                               threads);
  });
}

// out = D(payload), whose compression drew from `start` on. Writes out: 4 bytes an element of float, then the
// k that were drawn.
template <typename T>
void randomk_decompress(const void* payload, std::size_t n, std::size_t k, const Stream& start, T* out,
                        int threads, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) {
    RandomkKernels<chosen, T>::decompress(payload, n, k, start, out, threads);
  });
}

// out += D(payload), whose compression drew from `start` on. Reads and writes the elements that were drawn.
template <typename T>
void randomk_decompress_add(const void* payload, std::size_t n, std::size_t k, const Stream& start, T* out,
                            Isa isa = best_isa()) {
  const std::unique_ptr<T[]> scratch(new T[k]);
  dispatch(isa, [&](auto chosen) {
    RandomkKernels<chosen, T>::add(payload, n, k, start, out, scratch.get());
  });
}

}  // namespace gluon_gc
