// The memory that the emulated driver allocates. Kernels and copies may also use any other memory.
#pragma once

#include <cstddef>

namespace emulator {

// Allocates memory filled with junk. If the processor has protection keys, only threads with Access can use it; kernels
// and copies have Access.
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
