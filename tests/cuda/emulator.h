// CUDA for a plain C++ compiler: the language features that kernel sources use, run as fibers by emulator.cpp.
//
// A kernel source with this header in front is compiled into a shared library, which the emulated driver loads as a
// module.
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
// As thread-local storage, a module's shared memory is contiguous, so the emulator can swap it per block.
#define __shared__ static thread_local

namespace emulator {

struct Index {
  unsigned x, y;
};

// Those of the running thread
extern Index thread, block, blocks;

struct Place {
  const char* file;
  int line;
};

// Waits for all threads of the block at this barrier; a different barrier is an error.
void block_barrier(Place place);

// Waits for all lanes of the warp in this operation, and exchanges a value of 8 bytes per lane. Returns the values of
// all lanes, which stay valid until the lane's next operation.
const std::uint64_t* exchange(const char* operation, unsigned lanes, std::uint64_t given);

// Makes this thread's earlier writes visible to all threads that see its later writes.
void fence();

// Checks that all threads of the block have called fence(), because other blocks will read their writes.
void publishing();

// A kernel as a module contains it
struct Kernel {
  std::size_t parameters;          // number of parameters
  const std::size_t* sizes;        // size of each parameter in bytes
  void (*run)(void** parameters);  // runs one thread
  const char* (*shared)();         // returns an address in shared memory, which makes the system allocate it
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

// Registers a kernel under the name that the emulated driver looks up.
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

template <typename Value>
Value __shfl_up_sync(unsigned lanes, Value value, int by) {
  const int lane = static_cast<int>(threadIdx.x % 32), from = lane < by ? lane : lane - by;
  return emulator::value_of<Value>(emulator::exchange("shift", lanes, emulator::bits_of(value))[from]);
}

// A ticket tells other blocks that earlier writes are visible, so it needs a fence. atomicAdd only counts, and atomicOr
// only sets bits.
inline unsigned atomicInc(unsigned* at, unsigned most) {
  emulator::publishing();
  const unsigned old = *at;
  *at = old >= most ? 0 : old + 1;
  return old;
}

inline unsigned atomicAdd(unsigned* at, unsigned more) {
  const unsigned old = *at;
  *at = old + more;
  return old;
}

inline unsigned atomicOr(unsigned* at, unsigned bits) {
  const unsigned old = *at;
  *at = old | bits;
  return old;
}

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

inline int __float_as_int(float x) { return static_cast<int>(emulator::bits_of(x)); }
inline long long __double_as_longlong(double x) { return static_cast<long long>(emulator::bits_of(x)); }
inline float __int_as_float(int bits) { return emulator::value_of<float>(static_cast<std::uint32_t>(bits)); }
inline double __longlong_as_double(long long bits) { return emulator::value_of<double>(bits); }
