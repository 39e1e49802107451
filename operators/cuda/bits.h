// The unsigned integer that has the size of T. For host and device.
#pragma once

#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

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

}  // namespace cuda
}  // namespace gluon_gc
