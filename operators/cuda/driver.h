// The CUDA driver, loaded at run time. Nothing of CUDA is linked, so machines without a GPU need no CUDA.
#pragma once

#include <cstddef>

namespace gluon_gc {
namespace cuda {

// The types and constants of cuda.h.
using Result = int;
using Device = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using Address = unsigned long long;
enum DeviceAttribute { multiprocessors = 16, capability_major = 75, capability_minor = 76 };

// The functions of libcuda.so.1 that this library calls.
struct Driver {
  Result (*cuInit)(unsigned);
  Result (*cuGetErrorString)(Result, const char**);
  Result (*cuDeviceGet)(Device*, int);
  Result (*cuDeviceGetAttribute)(int*, DeviceAttribute, Device);
  Result (*cuDevicePrimaryCtxRetain)(Context*, Device);
  Result (*cuCtxGetCurrent)(Context*);
  Result (*cuCtxSetCurrent)(Context);
  Result (*cuCtxGetDevice)(Device*);
  Result (*cuModuleLoadData)(Module*, const void*);
  Result (*cuModuleGetFunction)(Function*, Module, const char*);
  Result (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int*, Function, int, std::size_t);
  Result (*cuLaunchKernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                           void**, void**);
  Result (*cuMemcpyDtoDAsync)(Address, Address, std::size_t, Stream);
  Result (*cuMemsetD8Async)(Address, unsigned char, std::size_t, Stream);
};

// Loads the driver on the first call. Throws if there is none.
const Driver& driver();

// Throws if a driver function failed, with the driver's message: "CUDA error 700 while `doing` `what`: ...".
void check(Result result, const char* doing, const char* what = "");

// Returns the current context of this thread. If there is none, makes the first device's primary context current, as
// the CUDA runtime does.
Context current_context();

// An attribute of the current context's device.
int attribute(DeviceAttribute which);

}  // namespace cuda
}  // namespace gluon_gc
