// A libcuda.so.1 that emulates devices in this process. Their memory is host memory, and a module is a shared library
// compiled from a kernel source with emulator.h. EMULATED_GPUS is the number of devices, by default 1.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"
#include "run.h"

namespace {

enum Result { success = 0, invalid_value = 1, invalid_image = 200, not_found = 500, launch_failed = 719 };
enum Attribute { multiprocessors = 16, capability_major = 75, capability_minor = 76 };

std::recursive_mutex mutex;
std::string message;                        // of the last failure
std::deque<std::function<Result()>> queued;  // work that is held back
std::vector<void*> streams;                  // the stream of each queued item
bool held = false;
unsigned width = 0;  // thread blocks along x that the last launch asked for
int capability = 75;
char contexts[8];  // their addresses are the devices' contexts
thread_local char* current = nullptr;

int device_count() {
  const char* const count = std::getenv("EMULATED_GPUS");
  return count != nullptr ? std::atoi(count) : 1;
}

Result fail(Result result, std::string why) {
  message = std::move(why);
  return result;
}

// Does the work now, or in emulator_release() if work is held back.
Result queue(void* stream, std::function<Result()> work) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  streams.push_back(stream);
  if (!held) {
    const emulator::Access access;
    return work();
  }
  queued.push_back(std::move(work));
  return success;
}

}  // namespace

extern "C" {

// For tests
void emulator_seed(unsigned number) { emulator::seed(number); }
void emulator_capability(int number) { capability = number; }
void emulator_hold() { held = true; }

int emulator_release() {
  held = false;
  const emulator::Access access;
  for (; !queued.empty(); queued.pop_front()) {
    const Result result = queued.front()();
    if (result != success) return result;
  }
  return success;
}

// Returns how many launches, copies and fills were queued in a stream since the last call.
std::size_t emulator_queued(void* stream) {
  std::size_t count = 0;
  for (void* const one : streams) count += one == stream;
  streams.clear();
  return count;
}

unsigned emulator_width() { return width; }

Result cuInit(unsigned) { return success; }

Result cuGetErrorString(Result, const char** text) {
  *text = message.c_str();
  return success;
}

Result cuDeviceGet(int* device, int number) {
  *device = number;
  return number < device_count() ? success : fail(invalid_value, "there are not so many devices");
}

Result cuDeviceGetCount(int* count) {
  *count = device_count();
  return success;
}

Result cuDeviceGetAttribute(int* value, Attribute which, int) {
  *value = which == multiprocessors ? 3 : which == capability_major ? capability / 10 : capability % 10;
  return success;
}

Result cuDevicePrimaryCtxRetain(void** made, int device) {
  *made = contexts + device;
  return success;
}

Result cuCtxGetCurrent(void** which) {
  *which = current;
  return success;
}

Result cuCtxSetCurrent(void* which) {
  current = static_cast<char*>(which);
  return success;
}

Result cuCtxGetDevice(int* device) {
  if (current == nullptr) return fail(invalid_value, "no context is current");
  *device = static_cast<int>(current - contexts);
  return success;
}

Result cuModuleLoadData(void** module, const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return fail(invalid_image, "this is no module: " + std::string(static_cast<const char*>(image), 16));
  }
  const std::size_t bytes = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
  const int file = memfd_create("module", 0);  // stays open: dlopen identifies a library by its name
  if (write(file, image, bytes) != static_cast<ssize_t>(bytes)) return fail(invalid_image, "no room for a module");
  dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);  // for the module's references to the emulator
  *module = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  return *module != nullptr ? success : fail(invalid_image, dlerror());
}

Result cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = dlsym(module, ("emulated_" + std::string(name)).c_str());
  return *function != nullptr ? success : fail(not_found, "the module has no such kernel");
}

Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
  *blocks = 2;
  return success;
}

Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                      unsigned threads_z, unsigned shared, void* stream, void** parameters, void** extra) {
  const auto& kernel = *static_cast<const emulator::Kernel*>(function);
  if (z * threads_y * threads_z != 1 || shared != 0 || extra != nullptr) {
    return fail(invalid_value, "grids have two dimensions, blocks one, and no other shared memory");
  }
  width = x;
  std::vector<std::vector<char>> copies;  // a driver copies the parameters at once
  for (std::size_t i = 0; i < kernel.parameters; ++i) {
    const char* const from = static_cast<const char*>(parameters[i]);
    copies.emplace_back(from, from + kernel.sizes[i]);
  }
  return queue(stream, [&kernel, x, y, threads, copies]() mutable {
    std::vector<void*> addresses;
    for (std::vector<char>& copy : copies) addresses.push_back(copy.data());
    const std::string error = emulator::launch(kernel, {x, y}, threads, addresses.data());
    return error.empty() ? success : fail(launch_failed, error);
  });
}

Result cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, std::size_t bytes, void* stream) {
  return queue(stream, [=] {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return success;
  });
}

Result cuMemsetD8Async(unsigned long long at, unsigned char value, std::size_t bytes, void* stream) {
  return queue(stream, [=] {
    std::memset(reinterpret_cast<void*>(at), value, bytes);
    return success;
  });
}

// Further driver functions for tests and benchmarks. An event is the time at which it was recorded.

Result cuDeviceGetName(char* name, int room, int) {
  std::strncpy(name, "emulator", room);
  return success;
}

Result cuMemAlloc_v2(unsigned long long* at, std::size_t bytes) {
  *at = reinterpret_cast<unsigned long long>(emulator::allocate(bytes));
  return success;
}

Result cuMemFree_v2(unsigned long long at) {
  emulator::release(reinterpret_cast<void*>(at));
  return success;
}

Result cuMemcpyHtoD_v2(unsigned long long to, const void* from, std::size_t bytes) {
  const emulator::Access access;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return success;
}

Result cuMemcpyDtoH_v2(void* to, unsigned long long from, std::size_t bytes) {
  const emulator::Access access;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return success;
}

Result cuCtxSynchronize() { return success; }

Result cuEventCreate(void** event, unsigned) {
  *event = new std::chrono::steady_clock::time_point;
  return success;
}

Result cuEventRecord(void* event, void*) {
  *static_cast<std::chrono::steady_clock::time_point*>(event) = std::chrono::steady_clock::now();
  return success;
}

Result cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  using Time = std::chrono::steady_clock::time_point;
  const std::chrono::duration<float, std::milli> elapsed = *static_cast<Time*>(end) - *static_cast<Time*>(begin);
  *milliseconds = elapsed.count();
  return success;
}

}  // extern "C"
