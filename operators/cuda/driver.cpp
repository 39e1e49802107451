#include "cuda/driver.h"

#include <dlfcn.h>

#include "core/options.h"

namespace gluon_gc {
namespace cuda {
namespace {

// Function `name` of a library. It converts to the type that it is assigned to.
struct Found {
  template <typename Pointer>
  operator Pointer() const {
    void* const function = dlsym(library, name);
    if (function == nullptr) refuse("libcuda.so.1 has no %s: the NVIDIA driver is too old", name);
    return reinterpret_cast<Pointer>(function);
  }

  void* library;
  const char* name;
};

Driver load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse("a codec for CUDA needs the NVIDIA driver: %s", dlerror());
  const auto find = [=](const char* name) { return Found{library, name}; };
  const Driver found{
      find("cuInit"),
      find("cuGetErrorString"),
      find("cuDeviceGet"),
      find("cuDeviceGetAttribute"),
      find("cuDevicePrimaryCtxRetain"),
      find("cuCtxGetCurrent"),
      find("cuCtxSetCurrent"),
      find("cuCtxGetDevice"),
      find("cuModuleLoadData"),
      find("cuModuleGetFunction"),
      find("cuOccupancyMaxActiveBlocksPerMultiprocessor"),
      find("cuLaunchKernel"),
      find("cuMemcpyDtoDAsync_v2"),
      find("cuMemsetD8Async"),
  };
  const Result result = found.cuInit(0);
  if (result != 0) refuse("a codec for CUDA needs a GPU: the NVIDIA driver does not start (CUDA error %d)", result);
  return found;
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load();  // if it throws, the next call tries again
  return loaded;
}

void check(Result result, const char* doing, const char* what) {
  if (result == 0) return;
  const char* message = nullptr;
  driver().cuGetErrorString(result, &message);
  refuse("CUDA error %d while %s%s: %s", result, doing, what, message != nullptr ? message : "unknown");
}

Context current_context() {
  Context context = nullptr;
  check(driver().cuCtxGetCurrent(&context), "asking for the current context");
  if (context != nullptr) return context;
  Device device;
  check(driver().cuDeviceGet(&device, 0), "asking for the first device");
  check(driver().cuDevicePrimaryCtxRetain(&context, device), "making the primary context");
  check(driver().cuCtxSetCurrent(context), "making the primary context current");
  return context;
}

int attribute(DeviceAttribute which) {
  Device device;
  int value;
  check(driver().cuCtxGetDevice(&device), "asking for the context's device");
  check(driver().cuDeviceGetAttribute(&value, which, device), "asking for a device attribute");
  return value;
}

}  // namespace cuda
}  // namespace gluon_gc
