// What a compressor supplies for CUDA, and the codec that is made of it.
//
// Beside the kernels, compressors/NAME.cu, there is a file that launches them, with a class over it, for float and
// double as T:
//
//   struct NAME : Launcher {
//     NAME(const Options&, std::size_t n);                    // options that the CPU's class of it has checked
//     template <typename T> std::size_t workspace_bytes() const;
//     template <typename T> auto given(const Encoding<T>&) const;        // what its kernels are given for a call,
//     template <typename T> auto given(const Decoding<T>&) const;        // as Launcher has it: just the call
//     template <typename T> void compress(const Queue&, const Calls<what is given>&) const;
//     template <typename T> void decompress(const Queue&, const Calls<what is given>&) const;  // payloads are valid
//     template <typename T> void residual(const Queue&, const Calls<Keeping<T>>&) const;
//     template <typename T> void restore(const Queue&, const Calls<Keeping<T>>&) const;
//   };
//   GLUON_GC_CUDA_COMPRESSOR(NAME of the file, NAME)
//
// A launch may take longer than the work of a call, so that it is for many: of codecs that differ in n alone, the
// largest first, whose launcher it is that queues them. What depends on n is in what is given. All else about a
// payload, and what memory there is, is as on the CPU, whose class of the same name says it. What they are given is
// memory of the device, and what they queue gives the bytes that the CPU gives.
#pragma once

#include <algorithm>
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

// Base of a compressor whose memory is the residual, and whose kernels are given nothing but the call.
struct Launcher {
  template <typename Call>
  const Call& given(const Call& call) const {
    return call;
  }

  template <typename T>
  void residual(const Queue& queue, const Calls<Keeping<T>>& calls) const {
    for (const Keeping<T>& call : calls) queue.copy(call.residual, call.memory[0], call.n * sizeof(T));
  }

  template <typename T>
  void restore(const Queue& queue, const Calls<Keeping<T>>& calls) const {
    for (const Keeping<T>& call : calls) queue.copy(call.memory[0], call.residual, call.n * sizeof(T));
  }
};

// A call, and the launcher of its codec.
template <typename Call>
struct Task {
  const void* launcher;
  Call call;
};
template <typename Call>
using Tasks = std::vector<Task<Call>>;

template <typename T>
struct Functions {
  std::size_t (*workspace_bytes)(const void* launcher);
  void (*compress)(const Queue&, const Tasks<Encoding<T>>&);
  void (*decompress)(const Queue&, const Tasks<Decoding<T>>&);
  void (*residual)(const Queue&, const Tasks<Keeping<T>>&);
  void (*restore)(const Queue&, const Tasks<Keeping<T>>&);
};

constexpr std::size_t max_compressor_bytes = 256;

struct Compressor {
  const char* name;
  void (*make)(void* launcher, const Options&, std::size_t n);  // in max_compressor_bytes
  Functions<float> of_float;
  Functions<double> of_double;
};

template <typename Kind, typename Call>
const Kind& launcher_of(const Task<Call>& task) {
  return *static_cast<const Kind*>(task.launcher);
}

// What the kernels are given, the largest first.
template <typename Kind, typename Call>
auto given(const Tasks<Call>& tasks) {
  auto calls = each(tasks, [](const Task<Call>& task) { return launcher_of<Kind>(task).given(task.call); });
  largest_first(calls);
  return calls;
}

template <typename Kind, typename T>
constexpr Functions<T> functions_of() {
  return {
      [](const void* launcher) { return static_cast<const Kind*>(launcher)->template workspace_bytes<T>(); },
      [](const Queue& queue, const Tasks<Encoding<T>>& tasks) {
        launcher_of<Kind>(tasks[0]).template compress<T>(queue, given<Kind>(tasks));
      },
      [](const Queue& queue, const Tasks<Decoding<T>>& tasks) {
        launcher_of<Kind>(tasks[0]).template decompress<T>(queue, given<Kind>(tasks));
      },
      [](const Queue& queue, const Tasks<Keeping<T>>& tasks) {
        launcher_of<Kind>(tasks[0]).residual(queue, given<Launcher>(tasks));
      },
      [](const Queue& queue, const Tasks<Keeping<T>>& tasks) {
        launcher_of<Kind>(tasks[0]).restore(queue, given<Launcher>(tasks));
      },
  };
}

template <typename Kind>
constexpr Compressor compressor_of(const char* name) {
  static_assert(sizeof(Kind) <= max_compressor_bytes, "codecs have no room for it");
  return {name,
          [](void* launcher, const Options& options, std::size_t n) {
            *static_cast<Kind*>(launcher) = Kind(options, n);
          },
          functions_of<Kind, float>(), functions_of<Kind, double>()};
}

#define GLUON_GC_CUDA_COMPRESSOR(name, Kind) \
  extern const Compressor name;              \
  constexpr Compressor name = compressor_of<Kind>(#name);

// A codec of n elements, on the GPU.
struct Codec {
  // `plan` is what the CPU's codec is, and outlives it.
  Codec(const Compressor& compressor, const Options& options, const Plan& plan);

  std::size_t workspace_bytes() const;

  const Compressor& compressor;
  const Plan& plan;
  alignas(16) unsigned char launcher[max_compressor_bytes] = {};
};

// A call, and its codec.
struct Job {
  const Codec& codec;
  const gluon_gc_call& call;
};
using Jobs = std::vector<Job>;

// For at least one call, of codecs that differ in n alone.
void compress(const Jobs& jobs);
void aggregate(const Jobs& jobs);
void decompress(const Jobs& jobs);
void residual(const Jobs& jobs);
void restore(const Jobs& jobs);

}  // namespace cuda
}  // namespace gluon_gc
