// What a compressor supplies for CUDA, and the codec that is made of it.
//
// Beside the kernels, compressors/NAME.cu, there is a file that launches them, with a class over it, for float and
// double as T:
//
//   struct NAME {
//     NAME(const Options&, std::size_t n);                    // options that the CPU's class of it has checked
//     template <typename T> std::size_t workspace_bytes() const;
//     template <typename T> void compress(const Queue&, const Encoding<T>&) const;
//     template <typename T> void decompress(const Queue&, const Decoding<T>&) const;  // of payloads that are valid
//     template <typename T> void residual(const Queue&, T* const* memory, T* out) const;
//     template <typename T> void restore(const Queue&, const T* residual, T* const* memory) const;
//   };
//   GLUON_GC_CUDA_COMPRESSOR(NAME of the file, NAME)
//
// All else about a payload, and what memory there is, is as on the CPU, whose class of the same name says it. What
// they are given is memory of the device, and what they queue gives the bytes that the CPU gives.
#pragma once

#include <cstddef>

#include "core/abi.h"
#include "core/codec.h"
#include "core/options.h"
#include "core/plan.h"
#include "cuda/call.h"
#include "cuda/queue.h"

namespace gluon_gc {
namespace cuda {

template <typename T>
struct Functions {
  std::size_t (*workspace_bytes)(const void* self);
  void (*compress)(const void* self, const Queue&, const Encoding<T>&);
  void (*decompress)(const void* self, const Queue&, const Decoding<T>&);
  void (*residual)(const void* self, const Queue&, T* const* memory, T* out);
  void (*restore)(const void* self, const Queue&, const T* residual, T* const* memory);
};

constexpr std::size_t max_compressor_bytes = 256;

struct Compressor {
  const char* name;
  void (*make)(void* self, const Options&, std::size_t n);  // in max_compressor_bytes
  Functions<float> of_float;
  Functions<double> of_double;
};

template <typename Kind, typename T>
constexpr Functions<T> functions_of() {
  return {
      [](const void* self) { return static_cast<const Kind*>(self)->template workspace_bytes<T>(); },
      [](const void* self, const Queue& queue, const Encoding<T>& call) {
        static_cast<const Kind*>(self)->compress(queue, call);
      },
      [](const void* self, const Queue& queue, const Decoding<T>& call) {
        static_cast<const Kind*>(self)->decompress(queue, call);
      },
      [](const void* self, const Queue& queue, T* const* memory, T* out) {
        static_cast<const Kind*>(self)->residual(queue, memory, out);
      },
      [](const void* self, const Queue& queue, const T* residual, T* const* memory) {
        static_cast<const Kind*>(self)->restore(queue, residual, memory);
      },
  };
}

template <typename Kind>
constexpr Compressor compressor_of(const char* name) {
  static_assert(sizeof(Kind) <= max_compressor_bytes, "codecs have no room for it");
  return {name, [](void* self, const Options& options, std::size_t n) { *static_cast<Kind*>(self) = Kind(options, n); },
          functions_of<Kind, float>(), functions_of<Kind, double>()};
}

#define GLUON_GC_CUDA_COMPRESSOR(name, Kind) \
  extern const Compressor name;              \
  constexpr Compressor name = compressor_of<Kind>(#name);

// Base of a compressor of n elements whose memory is the residual.
struct KeepsResidual {
  template <typename T>
  void residual(const Queue& queue, T* const* memory, T* out) const {
    copy(queue, memory[0], out);
  }

  template <typename T>
  void restore(const Queue& queue, const T* residual, T* const* memory) const {
    copy(queue, residual, memory[0]);
  }

  template <typename T>
  void copy(const Queue& queue, const T* from, T* to) const {
    if (from != to) queue.copy(to, from, n * sizeof(T));
  }

  Size n;
};

// Queues that a workspace becomes ready for calls.
void prepare(void* workspace, Stream stream);

// A codec of n elements, on the GPU.
class Codec {
 public:
  // `plan` is what the CPU's codec is, and outlives it.
  Codec(const Compressor& compressor, const Options& options, const Plan& plan);

  std::size_t workspace_bytes() const;
  void compress(const gluon_gc_call& call) const;
  void aggregate(const gluon_gc_call& call) const;
  void decompress(const gluon_gc_call& call) const;
  void residual(const gluon_gc_call& call) const;
  void restore(const gluon_gc_call& call) const;

 private:
  const Compressor& compressor_;
  const Plan& plan_;
  alignas(16) unsigned char self_[max_compressor_bytes] = {};
};

}  // namespace cuda
}  // namespace gluon_gc
