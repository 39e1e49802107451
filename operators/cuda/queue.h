// Where a call's kernels and copies are queued. Nothing waits for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "cuda/call.h"
#include "cuda/calls.h"
#include "cuda/driver.h"

namespace gluon_gc {
namespace cuda {

// Refuses where this library, or this machine, cannot run the kernels of a source, and says why.
void require(const char* source);

// Takes a source's kernels from an image of machine code, of any form that the driver loads, rather than from the
// library. It must stay where it is.
void replace(const char* source, const void* image);

template <typename T>
constexpr const char* suffix = "";
template <>
inline constexpr const char* suffix<float> = "_float32";
template <>
inline constexpr const char* suffix<double> = "_float64";

class Queue {
 public:
  // A stream of the context that is current. The kernels of the source, a compressor's or "convert", are loaded into
  // it when they are first asked for, which may take long.
  Queue(const char* source, Stream stream);

  // Queues kernel NAME_float32 or NAME_float64, or with void NAME, whose parameters are a Batch<Call> and what is alike
  // for all calls, of just these types: once for as many calls as a batch takes. For each call there are as many blocks
  // as the device runs at a time, or fewer if the first call of the batch, which is the largest, has fewer tiles.
  template <typename T, typename Call, typename... Alike>
  void launch(const std::string& name, const Calls<Call>& calls, const Alike&... alike) const {
    static_assert(sizeof(Batch<Call>) + (0 + ... + sizeof(Alike)) <= 4096, "a kernel has no room for the parameters");
    for (auto from = calls.begin(); from != calls.end();) {
      Batch<Call> batch;
      const std::size_t count = std::min<std::size_t>(calls.end() - from, Batch<Call>::most);
      std::copy_n(from, count, batch.call);
      void* parameters[] = {&batch, const_cast<void*>(static_cast<const void*>(&alike))...};
      queue(name + suffix<T>, tiles_of(from->n), count, parameters);
      from += count;
    }
  }

  void copy(void* to, const void* from, std::size_t bytes) const;
  void fill_with_zeros(void* at, std::size_t bytes) const;

 private:
  void queue(const std::string& kernel, std::size_t tiles, std::size_t calls, void** parameters) const;

  const char* const source_;
  const Stream stream_;
  const Context context_;
};

}  // namespace cuda
}  // namespace gluon_gc
