// What a compressor supplies for CUDA, and the codec that is made of it.
//
// Beside the kernels, compressors/NAME.cu, there is a file that launches them, with a class over it, for float and
// double as T:
//
//   struct NAME {
//     explicit NAME(const Options&);                          // options that the CPU's class of it has checked
//     template <typename T> std::size_t workspace_bytes(std::size_t n) const;
//     template <typename T> void compress(const Queue&, const Calls<Encoding<T>>&) const;
//     template <typename T> void decompress(const Queue&, const Calls<Decoding<T>>&) const;  // payloads are valid
//     template <typename T> void residual(const Queue&, const Calls<Keeping<T>>&) const;
//     template <typename T> void restore(const Queue&, const Calls<Keeping<T>>&) const;
//   };
//   GLUON_GC_CUDA_COMPRESSOR(NAME of the file, NAME)
//
// It is given many calls at once, the largest first, since a launch may take longer than the work of one: Queue's
// launch() takes them together. All else about a payload, and what memory there is, is as on the CPU, whose class of the
// same name says it. What they are given is memory of the device, and what they queue gives the bytes that the CPU
// gives.
#pragma once

#include <cstddef>
#include <vector>

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
  std::size_t (*workspace_bytes)(const void* self, std::size_t n);
  void (*compress)(const void* self, const Queue&, const Calls<Encoding<T>>&);
  void (*decompress)(const void* self, const Queue&, const Calls<Decoding<T>>&);
  void (*residual)(const void* self, const Queue&, const Calls<Keeping<T>>&);
  void (*restore)(const void* self, const Queue&, const Calls<Keeping<T>>&);
};

constexpr std::size_t max_compressor_bytes = 256;

struct Compressor {
  const char* name;
  void (*make)(void* self, const Options&);  // in max_compressor_bytes
  Functions<float> of_float;
  Functions<double> of_double;
};

template <typename Kind, typename T>
constexpr Functions<T> functions_of() {
  return {
      [](const void* self, std::size_t n) { return static_cast<const Kind*>(self)->template workspace_bytes<T>(n); },
      [](const void* self, const Queue& queue, const Calls<Encoding<T>>& calls) {
        static_cast<const Kind*>(self)->compress(queue, calls);
      },
      [](const void* self, const Queue& queue, const Calls<Decoding<T>>& calls) {
        static_cast<const Kind*>(self)->decompress(queue, calls);
      },
      [](const void* self, const Queue& queue, const Calls<Keeping<T>>& calls) {
        static_cast<const Kind*>(self)->residual(queue, calls);
      },
      [](const void* self, const Queue& queue, const Calls<Keeping<T>>& calls) {
        static_cast<const Kind*>(self)->restore(queue, calls);
      },
  };
}

template <typename Kind>
constexpr Compressor compressor_of(const char* name) {
  static_assert(sizeof(Kind) <= max_compressor_bytes, "codecs have no room for it");
  return {name, [](void* self, const Options& options) { *static_cast<Kind*>(self) = Kind(options); }, functions_of<Kind, float>(),
          functions_of<Kind, double>()};
}

#define GLUON_GC_CUDA_COMPRESSOR(name, Kind) \
  extern const Compressor name;              \
  constexpr Compressor name = compressor_of<Kind>(#name);

// Base of a compressor whose memory is the residual.
struct KeepsResidual {
  template <typename T>
  void residual(const Queue& queue, const Calls<Keeping<T>>& calls) const {
    for (const Keeping<T>& call : calls) queue.copy(call.residual, call.memory[0], call.n * sizeof(T));
  }

  template <typename T>
  void restore(const Queue& queue, const Calls<Keeping<T>>& calls) const {
    for (const Keeping<T>& call : calls) queue.copy(call.memory[0], call.residual, call.n * sizeof(T));
  }
};

// A call, and what its codec is on the CPU.
struct Job {
  const Plan& plan;
  const gluon_gc_call& call;
};
using Jobs = std::vector<Job>;

// Queues that tickets become zeros.
void prepare(void* tickets, std::size_t count, Stream stream);

// What queues the calls of codecs that differ in n alone.
class Codec {
 public:
  Codec(const Compressor& compressor, const Options& options);

  std::size_t workspace_bytes(const Plan& plan) const;
  void compress(const Jobs& jobs) const;
  void aggregate(const Jobs& jobs) const;
  void decompress(const Jobs& jobs) const;
  void residual(const Jobs& jobs) const;
  void restore(const Jobs& jobs) const;

 private:
  template <typename Body>
  void run(const Jobs& jobs, Body body) const;

  const Compressor& compressor_;
  alignas(16) unsigned char self_[max_compressor_bytes] = {};
};

}  // namespace cuda
}  // namespace gluon_gc
