// The CUDA driver, found at run time: nothing of CUDA is linked, and a machine without a GPU needs none.
#pragma once

#include <cstddef>

namespace gluon_gc {
namespace cuda {

// As cuda.h has them.
using Result = int;
using Device = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using Address = unsigned long long;
enum DeviceAttribute { multiprocessors = 16, capability_major = 75, capability_minor = 76 };

// The functions of libcuda.so.1 that are used.
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

// Loads it when first called; refuses where there is none.
const Driver& driver();

// Refuses with the driver's message if it did not do what was asked: "CUDA error 700 while `doing` `what`: ...".
void check(Result result, const char* doing, const char* what = "");

// The context that is current on this thread; where none is, the primary context of the first device becomes it,
// as with the CUDA runtime.
Context current_context();

// Of the current context's device.
int attribute(DeviceAttribute which);

}  // namespace cuda
}  // namespace gluon_gc
