// CUDA for a plain C++ compiler: what kernel sources use of the language, run by emulator.cpp as fibers.
//
// A kernel source is compiled with this header in front into a shared library, which is what the stand-in for the
// driver takes for a module.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __constant__
#define __launch_bounds__(threads, blocks)
// The linker puts all of a module's side by side, so that each block can be given its own.
#define __shared__ static thread_local

namespace emulator {

struct Index {
  unsigned x, y;
};

// Of the thread that runs.
extern Index thread, block, blocks;

struct Place {
  const char* file;
  int line;
};

// Waits until all threads of the block are here, and at no other barrier.
void block_barrier(Place place);

// Waits until all lanes of the warp are in such an operation too; afterwards each can see what each has given.
// Returns the values of the warp's lanes, of 8 bytes each, good until the lane's next operation.
const std::uint64_t* exchange(const char* operation, unsigned lanes, std::uint64_t given);

// What a thread wrote before can be seen by all that see what it writes afterwards.
void fence();

// Checks that all threads of the block made a fence before, since others will take what it wrote as there.
void publishing();

// A kernel, as modules have them.
struct Kernel {
  std::size_t parameters;          // their number
  const std::size_t* sizes;        // of each, in bytes
  void (*run)(void** parameters);  // one thread
  const char* (*shared)();         // an address in shared memory, for the system to make room for it
};

template <typename Value>
std::uint64_t bits_of(Value value) {
  static_assert(sizeof(Value) <= sizeof(std::uint64_t), "no lane gives more");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

template <typename Value>
Value value_of(std::uint64_t bits) {
  Value value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename... Parameters>
struct Launch {
  static constexpr std::size_t count = sizeof...(Parameters);
  static constexpr std::size_t sizes[] = {sizeof(Parameters)...};

  template <void (*kernel)(Parameters...)>
  static void run(void** parameters) {
    call<kernel>(parameters, std::index_sequence_for<Parameters...>());
  }

  template <void (*kernel)(Parameters...), std::size_t... i>
  static void call(void** parameters, std::index_sequence<i...>) {
    kernel(*static_cast<Parameters*>(parameters[i])...);
  }
};

template <typename... Parameters>
Launch<Parameters...> launch_of(void (*)(Parameters...));

}  // namespace emulator

[[maybe_unused]] static const char* emulated_shared() {
  __shared__ char first;
  return &first;
}

// Makes the stand-in for the driver find a kernel.
#define EMULATED(name)                                                                        \
  extern "C" const emulator::Kernel emulated_##name;                                          \
  const emulator::Kernel emulated_##name = {                                                  \
      decltype(emulator::launch_of(name))::count, decltype(emulator::launch_of(name))::sizes, \
      decltype(emulator::launch_of(name))::run<name>, emulated_shared};

#define threadIdx emulator::thread
#define blockIdx emulator::block
#define gridDim emulator::blocks
#define __syncthreads() emulator::block_barrier({__FILE__, __LINE__})
#define __syncwarp() emulator::exchange("warp barrier", 0xffffffff, 0)
#define __threadfence() emulator::fence()

using std::copysign;
using std::fabs;
using std::sqrt;

inline unsigned __ballot_sync(unsigned lanes, bool predicate) {
  const std::uint64_t* const all = emulator::exchange("ballot", lanes, predicate);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[i]) << i;
  return bits;
}

template <typename Value>
Value __shfl_sync(unsigned lanes, Value value, int from) {
  return emulator::value_of<Value>(emulator::exchange("shuffle", lanes, emulator::bits_of(value))[from % 32]);
}

template <typename Value>
Value __shfl_xor_sync(unsigned lanes, Value value, int mask) {
  const int from = static_cast<int>(threadIdx.x % 32) ^ mask;
  return emulator::value_of<Value>(emulator::exchange("butterfly", lanes, emulator::bits_of(value))[from % 32]);
}

inline unsigned atomicInc(unsigned* at, unsigned most) {
  emulator::publishing();
  const unsigned old = *at;
  *at = old >= most ? 0 : old + 1;
  return old;
}

inline unsigned atomicAdd(unsigned* at, unsigned more) {
  emulator::publishing();
  const unsigned old = *at;
  *at = old + more;
  return old;
}

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __float_as_int(float x) { return static_cast<int>(emulator::bits_of(x)); }
inline long long __double_as_longlong(double x) { return static_cast<long long>(emulator::bits_of(x)); }
inline float __int_as_float(int bits) { return emulator::value_of<float>(static_cast<std::uint32_t>(bits)); }
inline double __longlong_as_double(long long bits) { return emulator::value_of<double>(bits); }
