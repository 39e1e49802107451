// Floats as the integers of their bits.
#pragma once

#include "cuda/bits.h"

namespace gluon_gc {
namespace cuda {
namespace {

__device__ inline uint32 bits_of(float x) { return static_cast<uint32>(__float_as_int(x)); }
__device__ inline uint64 bits_of(double x) { return static_cast<uint64>(__double_as_longlong(x)); }
__device__ inline float of_bits(uint32 bits) { return __int_as_float(static_cast<int>(bits)); }
__device__ inline double of_bits(uint64 bits) { return __longlong_as_double(static_cast<long long>(bits)); }

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
