// What a compressor supplies to be registered as MXNet operators (compressor_operators.h): its kernels, as a
// class:
//
//   struct Compressor : CompressorTraits {      // with what differs from the traits
//     static constexpr const char* kName;       // "onebit"
//     static constexpr int kMemory;             // arrays that its error feedback keeps
//     explicit Compressor(const Attributes&);   // its own options
//     template <typename T> std::size_t payload_bytes(std::size_t n) const;  // at most
//     template <typename T> double compress(const T* x, std::size_t n, const Feedback<T>&, Stream&,
//                                           std::uint8_t* payload, int threads) const;
//         // not finite if an element of x is not
//     template <typename T> void spoil(std::uint8_t* payload, std::size_t n) const;  // not finite
//     template <typename T> bool finite(const std::uint8_t* payload, std::size_t n) const;
//     template <typename T> void decompress_sum(const std::uint8_t* payloads, std::size_t stride,
//                                               std::size_t count, std::size_t n, T* out,
//                                               int threads) const;
//     template <typename T> void decompress(const std::uint8_t* payload, std::size_t n,
//                                           const Stream& start, T* out, int threads) const;
//         // instead of decompress_sum if it is summable
//     template <typename T> void residual(T* const* memory, std::size_t n, T* out) const;
//   };
//
// What is not finite makes its payload not finite, so that all workers learn of it, and momentum and
// memory start again from zero.
//
// With corrected error feedback the ratio of learning rates travels in front of a payload that is
// aggregated, so that the aggregator corrects with the same ratio as the workers.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "../core/feedback.h"
#include "../core/stream.h"
#include "operator.h"

namespace gluon_gc {

struct CompressorTraits {
  static constexpr bool kDraws = false;     // draws from a stream, which compress moves on
  static constexpr bool kSummable = false;  // a payload is an array of T; that of a sum is their sum
  static constexpr bool kVariable = false;  // a payload starts with its length in bytes, as a uint32

  // The memory is the residual.
  template <typename T>
  void residual(T* const* memory, std::size_t n, T* out) const {
    std::memcpy(out, memory[0], n * sizeof(T));
  }
};

template <typename T>
struct Feedback {
  T gradient_scale = 1;          // multiplies the gradient first
  T* momentum = nullptr;         // Nesterov's state, or none
  T mu = 0;
  T* const* memory = nullptr;    // the compressor's kMemory arrays, or none: no error feedback
  T ratio = 1;                   // multiplies the residual

  // For a compressor whose memory is the residual.
  FeedbackState<T> state() const { return {momentum, mu, memory ? memory[0] : nullptr, ratio}; }
};

// Whether `count` values of T, of any alignment, are finite.
template <typename T>
bool all_finite(const std::uint8_t* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, values + i * sizeof(T), sizeof(T));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace gluon_gc
