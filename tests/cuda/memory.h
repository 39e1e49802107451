// The memory of emulated GPUs, for those who ask the driver for it; kernels and copies also take any other.
#pragma once

#include <cstddef>

namespace emulator {

// Filled with what is no use to anybody. Where the processor has protection keys, only threads that have Access may
// touch it, as kernels and copies do.
void* allocate(std::size_t bytes);
void release(void* memory);

class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;

 private:
  const bool had_;
};

}  // namespace emulator
