// Queues kernels and copies in a stream of the driver. Nothing waits for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "cuda/call.h"
#include "cuda/calls.h"
#include "cuda/driver.h"

namespace gluon_gc {
namespace cuda {

// Throws if this library or this machine cannot run the kernels of a source.
void require(const char* source);

// Takes the kernels of a source from this image instead of the library's own. The image may have any form that the
// driver loads, and must stay in memory.
void replace(const char* source, const void* image);

template <typename T>
constexpr const char* suffix = "";
template <>
inline constexpr const char* suffix<float> = "_float32";
template <>
inline constexpr const char* suffix<double> = "_float64";

class Queue {
 public:
  // `stream` belongs to the current context. `source` is a compressor, "convert" or "clip". Its kernels are loaded into
  // the context on first use, which may take long.
  Queue(const char* source, Stream stream);

  // Queues kernel NAME_float32 or NAME_float64, or NAME if T is void: one launch for each batch of calls. Calls must be
  // sorted by n, largest first. The kernel's parameters are a Batch<Call> and `shared`, which must have exactly the
  // kernel's types. Each call gets as many blocks as the device runs at a time, or fewer if the largest call of the
  // batch needs fewer.
  template <typename T, typename Call, typename... Shared>
  void launch(const std::string& name, const Calls<Call>& calls, const Shared&... shared) const {
    static_assert(sizeof(Batch<Call>) + (0 + ... + sizeof(Shared)) <= 4096, "the parameters exceed 4 KB");
    for (auto from = calls.begin(); from != calls.end();) {
      Batch<Call> batch;
      const std::size_t count = std::min<std::size_t>(calls.end() - from, Batch<Call>::most);
      std::copy_n(from, count, batch.call);
      void* parameters[] = {&batch, const_cast<void*>(static_cast<const void*>(&shared))...};
      queue(name + suffix<T>, most_thread_blocks(*from), count, parameters);
      from += count;
    }
  }

  void copy(void* to, const void* from, std::size_t bytes) const;
  void fill_with_zeros(void* at, std::size_t bytes) const;

 private:
  void queue(const std::string& kernel, std::size_t blocks, std::size_t calls, void** parameters) const;

  const char* const source_;
  const Stream stream_;
  const Context context_;
};

}  // namespace cuda
}  // namespace gluon_gc
