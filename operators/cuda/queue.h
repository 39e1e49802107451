// Where a call's kernels and copies are queued. Nothing waits for them.
#pragma once

#include <cstddef>

#include "cuda/driver.h"

namespace gluon_gc {
namespace cuda {

// Refuses where this library, or this machine, cannot run a compressor on a GPU, and says why.
void require(const char* compressor);

// Takes a compressor's kernels from an image of machine code, of any form that the driver loads, rather than from
// the library. It must stay where it is.
void replace(const char* compressor, const void* image);

class Queue {
 public:
  // A stream of the context that is current. The compressor's kernels are loaded into it when they are first
  // asked for, which may take long.
  Queue(const char* compressor, Stream stream);

  // Queues kernel NAME_float32 or NAME_float64, of as many blocks as the device runs at a time, or fewer if there
  // are fewer tiles. The parameters must be of just the kernel's types.
  template <typename T, typename... Parameters>
  void launch(const char* name, std::size_t tiles, const Parameters&... parameters) const {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    launch(name, sizeof(T), tiles, addresses);
  }

  void copy(void* to, const void* from, std::size_t bytes) const;
  void fill_with_zeros(void* at, std::size_t bytes) const;

 private:
  void launch(const char* name, std::size_t itemsize, std::size_t tiles, void** parameters) const;

  const char* const compressor_;
  const Stream stream_;
  const Context context_;
};

}  // namespace cuda
}  // namespace gluon_gc
