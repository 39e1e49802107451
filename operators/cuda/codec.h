// What a compressor supplies for CUDA, and the codec that is made of it.
//
// A compressor has its kernels in compressors/FILE.cu. compressors/FILE.cpp launches them from a class, for float and
// double as T:
//
//   struct Class : Launcher {
//     Class(const Options&, std::size_t n);  // The CPU's class has checked the options.
//     template <typename T> std::size_t workspace_bytes() const;
//
//     // The kernels' argument for a call: the Argument of the functions below. call.h has Encoding, Decoding and Keeping.
//     template <typename T> auto given(const Encoding<T>&) const;
//     template <typename T> auto given(const Decoding<T>&) const;
//
//     template <typename T> void compress(const Queue&, const Calls<Argument>&) const;
//     template <typename T> void decompress(const Queue&, const Calls<Argument>&) const;  // Payloads are valid.
//
//     template <typename T> void residual(const Queue&, const Calls<Keeping<T>>&) const;
//     template <typename T> void restore(const Queue&, const Calls<Keeping<T>>&) const;
//   };
//   GLUON_GC_CUDA_COMPRESSOR(FILE, Class)
//
// A kernel is launched for many calls, because a launch may take longer than the work of one call. Their codecs differ
// in n only. Calls are sorted by n, largest first, and the launcher of one of the codecs queues all of them. So
// everything that depends on n must be in given(). The payload and the memory are those of the CPU's compressor of the
// same name. Pointers lead to device memory, and kernels give the same bytes as the CPU.
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

// The base class of launchers. Its functions fit a compressor whose memory is the residual and nothing else, and whose
// kernels take the call itself as their argument. Other compressors define their own.
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

// A call with the launcher of its codec.
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
  void (*make)(void* launcher, const Options&, std::size_t n);  // makes a launcher at this address, which has
                                                                // max_compressor_bytes of memory
  Functions<float> of_float;
  Functions<double> of_double;
};

template <typename Kind, typename Call>
const Kind& launcher_of(const Task<Call>& task) {
  return *static_cast<const Kind*>(task.launcher);
}

// The kernels' arguments for these calls, sorted by n, largest first.
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
  static_assert(sizeof(Kind) <= max_compressor_bytes, "the class is larger than max_compressor_bytes");
  return {name,
          [](void* launcher, const Options& options, std::size_t n) {
            *static_cast<Kind*>(launcher) = Kind(options, n);
          },
          functions_of<Kind, float>(), functions_of<Kind, double>()};
}

#define GLUON_GC_CUDA_COMPRESSOR(name, Kind) \
  extern const Compressor name;              \
  constexpr Compressor name = compressor_of<Kind>(#name);

// A codec for n elements on the GPU.
struct Codec {
  // `plan` belongs to the CPU's codec and must outlive this one.
  Codec(const Compressor& compressor, const Options& options, const Plan& plan);

  std::size_t workspace_bytes() const;

  const Compressor& compressor;
  const Plan& plan;
  alignas(16) unsigned char launcher[max_compressor_bytes] = {};
};

// A call with its codec.
struct Job {
  const Codec& codec;
  const gluon_gc_call& call;
};
using Jobs = std::vector<Job>;

// These functions take at least one call. The codecs of the calls may differ in n only.
void compress(const Jobs& jobs);
void aggregate(const Jobs& jobs);
void decompress(const Jobs& jobs);
void residual(const Jobs& jobs);
void restore(const Jobs& jobs);

}  // namespace cuda
}  // namespace gluon_gc
