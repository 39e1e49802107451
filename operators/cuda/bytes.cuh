// Reads and writes values at addresses of any alignment, as in payloads.
#pragma once

#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {
namespace {

template <typename Value>
__device__ inline bool aligned(const void* at) {
  return reinterpret_cast<Size>(at) % sizeof(Value) == 0;
}

template <typename Value>
union Bytes {
  Value value;
  uint8 byte[sizeof(Value)];
};

// Reads value `index` of an array.
template <typename Value>
__device__ inline Value read(const uint8* from, Size index = 0) {
  from += index * sizeof(Value);
  if (aligned<Value>(from)) return *reinterpret_cast<const Value*>(from);
  Bytes<Value> bytes;
#pragma unroll
  for (int i = 0; i < int(sizeof(Value)); ++i) bytes.byte[i] = from[i];
  return bytes.value;
}

template <typename Value>
__device__ inline void write(uint8* to, Size index, Value value) {
  to += index * sizeof(Value);
  if (aligned<Value>(to)) {
    *reinterpret_cast<Value*>(to) = value;
    return;
  }
  const Bytes<Value> bytes{value};
#pragma unroll
  for (int i = 0; i < int(sizeof(Value)); ++i) to[i] = bytes.byte[i];
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
