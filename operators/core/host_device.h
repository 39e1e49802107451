// Types and functions that CPU code and CUDA kernels share. A header that includes only this one compiles with the host
// compiler, nvcc and NVRTC. NVRTC has no headers of the standard library.
#pragma once

#ifdef __CUDACC__
#define GLUON_GC_HOST_DEVICE __device__ inline
#else
#include <cstring>
#define GLUON_GC_HOST_DEVICE __attribute__((always_inline)) inline
#endif

namespace gluon_gc {

using Size = decltype(sizeof(0));
using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long;
static_assert(sizeof(uint16) == 2 && sizeof(uint32) == 4 && sizeof(uint64) == 8 && sizeof(Size) == 8,
              "integers have other sizes on this platform");

namespace {

// Bits<T>: the unsigned integer with the size of T.
template <Size size>
struct BitsOfSize {
  using type = uint32;
};
template <>
struct BitsOfSize<8> {
  using type = uint64;
};
template <typename T>
using Bits = typename BitsOfSize<sizeof(T)>::type;

template <typename T>
GLUON_GC_HOST_DEVICE Bits<T> bits_of(T x) {
  Bits<T> bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

GLUON_GC_HOST_DEVICE float from_bits(uint32 bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

GLUON_GC_HOST_DEVICE double from_bits(uint64 bits) {
  double x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

template <typename T>
constexpr int sign_shift = 8 * sizeof(T) - 1;
template <typename T>
constexpr int mantissa_bits = sizeof(T) == 4 ? 23 : 52;
template <typename T>
constexpr Bits<T> bits_of_one = static_cast<Bits<T>>(sizeof(T) == 4 ? 0x3f800000 : 0x3ff0000000000000);
template <typename T>
constexpr Bits<T> infinity_bits = static_cast<Bits<T>>(sizeof(T) == 4 ? 0x7f800000 : 0x7ff0000000000000);
template <typename T>
constexpr Bits<T> nan_bits = infinity_bits<T> | infinity_bits<T> >> 1;
template <typename T>
constexpr T largest_finite = static_cast<T>(sizeof(T) == 4 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023);

template <typename T>
GLUON_GC_HOST_DEVICE T infinity() {
  return from_bits(infinity_bits<T>);
}

// The NaN in payloads. It is a constant because CPUs and GPUs compute NaNs with different bits.
template <typename T>
GLUON_GC_HOST_DEVICE T not_a_number() {
  return from_bits(nan_bits<T>);
}

template <typename T>
GLUON_GC_HOST_DEVICE bool is_finite(T x) {
  return x - x == 0;
}

template <typename T>
GLUON_GC_HOST_DEVICE T absolute(T x) {
  return from_bits(bits_of(x) & ~(Bits<T>{1} << sign_shift<T>));
}

GLUON_GC_HOST_DEVICE double square_root(double x) {
#ifdef __CUDACC__
  return sqrt(x);
#else
  return __builtin_sqrt(x);
#endif
}

// 2^exponent, for results that are normal numbers of T.
template <typename T>
GLUON_GC_HOST_DEVICE T power_of_two(int exponent) {
  return from_bits(bits_of_one<T> + (static_cast<Bits<T>>(exponent) << mantissa_bits<T>));
}

}  // namespace
}  // namespace gluon_gc
