// A libcudart.so.11.0 for the GPUs of tests/cuda/driver.cpp. Queued work runs at once. MXNet's own kernels do nothing,
// except those in elementwise.h.
//
// Functions that are not defined here do nothing; build.py generates them.
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "elementwise.h"
#include "memory.h"

// Functions of the driver
extern "C" {
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuDeviceGetCount(int* count);
int cuDeviceGetAttribute(int* value, int which, int device);
}

namespace {

using Stream = void*;
enum Error { success = 0, invalid_value = 1, out_of_memory = 2, invalid_device = 101 };
enum Attribute {
  max_threads_per_block = 1,
  warp_size = 10,
  multiprocessors = 16,
  capability_major = 75,
  capability_minor = 76
};

struct Dim3 {
  unsigned x, y, z;
};

// The start of cudaDeviceProp; MXNet reads the other properties as attributes.
struct Properties {
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  std::size_t memory, shared_memory;
  int registers, warp_size;
  std::size_t pitch;
  int threads_of_block, most_threads[3], most_blocks[3], clock_rate;
  std::size_t constant_memory;
  int major, minor;
  std::size_t texture_alignment, texture_pitch;
  int overlap, multiprocessors;
};

constexpr std::size_t memory_bytes = std::size_t{8} << 30;

thread_local int device = 0;
thread_local Error last = success;

struct Launch {
  Dim3 grid, block;
  std::size_t shared;
  Stream stream;
};
thread_local Launch pushed;

// MXNet's kernels in elementwise.h, by their host addresses. Never freed, because threads may run until exit.
auto& kernels = *new std::unordered_map<const void*, Elementwise>;

Error copy(void* to, const void* from, std::size_t bytes) {
  const emulator::Access access;
  std::memcpy(to, from, bytes);
  return success;
}

}  // namespace

extern "C" {

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  const Elementwise kernel = elementwise(name);
  if (kernel != nullptr) kernels[host] = kernel;
}

unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, std::size_t shared, Stream stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}

Error __cudaPopCallConfiguration(Dim3* grid, Dim3* block, std::size_t* shared, Stream* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *stream = pushed.stream;
  return success;
}

Error cudaLaunchKernel(const void* host, Dim3, Dim3, void** parameters, std::size_t, Stream) {
  const auto kernel = kernels.find(host);
  if (kernel == kernels.end()) return success;
  const emulator::Access access;
  kernel->second(parameters);
  return success;
}

Error cudaGetDeviceCount(int* count) { return static_cast<Error>(cuDeviceGetCount(count)); }

Error cudaSetDevice(int which) {
  int count;
  cuDeviceGetCount(&count);
  if (which < 0 || which >= count) return last = invalid_device;
  device = which;
  void* context;
  cuDevicePrimaryCtxRetain(&context, which);
  cuCtxSetCurrent(context);
  return success;
}

Error cudaGetDevice(int* which) {
  *which = device;
  return success;
}

Error cudaDeviceGetAttribute(int* value, Attribute which, int of) {
  if (which == max_threads_per_block) return *value = 1024, success;
  if (which == warp_size) return *value = 32, success;
  return static_cast<Error>(cuDeviceGetAttribute(value, which, of));
}

Error cudaGetDeviceProperties(Properties* properties, int of) {
  *properties = {};
  std::strcpy(properties->name, "emulator");
  properties->memory = memory_bytes;
  properties->shared_memory = 48 << 10;
  properties->warp_size = 32;
  properties->threads_of_block = 1024;
  cuDeviceGetAttribute(&properties->major, capability_major, of);
  cuDeviceGetAttribute(&properties->minor, capability_minor, of);
  cuDeviceGetAttribute(&properties->multiprocessors, multiprocessors, of);
  return success;
}

Error cudaGetLastError() {
  const Error error = last;
  last = success;
  return error;
}

Error cudaPeekAtLastError() { return last; }
const char* cudaGetErrorString(Error) { return "an error of the stand-in for CUDA's runtime"; }
const char* cudaGetErrorName(Error) { return "cudaError"; }

Error cudaDriverGetVersion(int* version) {
  *version = 11020;
  return success;
}

Error cudaMalloc(void** memory, std::size_t bytes) {
  *memory = emulator::allocate(bytes);
  return *memory != nullptr ? success : last = out_of_memory;
}

Error cudaFree(void* memory) {
  emulator::release(memory);
  return success;
}

Error cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return posix_memalign(memory, 4096, bytes) == 0 ? success : last = out_of_memory;
}

Error cudaFreeHost(void* memory) {
  std::free(memory);
  return success;
}

Error cudaMemGetInfo(std::size_t* unused, std::size_t* all) {
  *unused = *all = memory_bytes;
  return success;
}

Error cudaMemcpy(void* to, const void* from, std::size_t bytes, int) { return copy(to, from, bytes); }
Error cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int, Stream) { return copy(to, from, bytes); }
Error cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, Stream) {
  return copy(to, from, bytes);
}

Error cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                        std::size_t height, int, Stream) {
  for (std::size_t row = 0; row < height; ++row) {
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return success;
}

Error cudaMemsetAsync(void* to, int value, std::size_t bytes, Stream) {
  const emulator::Access access;
  std::memset(to, value, bytes);
  return success;
}

Error cudaStreamCreate(Stream* stream) {
  *stream = new char;
  return success;
}

Error cudaStreamDestroy(Stream stream) {
  delete static_cast<char*>(stream);
  return success;
}

Error cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return success;
}

Error cudaDeviceGetP2PAttribute(int* value, int, int, int) {
  *value = 0;
  return success;
}

Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, std::size_t, unsigned) {
  *blocks = 1;
  return success;
}

}  // extern "C"
