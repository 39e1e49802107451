// Reads and writes values at unaligned addresses. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstring>

namespace gluon_gc {
namespace {

template <typename Value>
inline Value read(const void* from) {
  Value value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename Value>
inline void write(void* to, const Value& value) {
  std::memcpy(to, &value, sizeof(value));
}

// Whether all of `count` values are finite.
template <typename T>
inline bool all_finite(const void* values, std::size_t count) {
  T check = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const T value = read<T>(static_cast<const char*>(values) + i * sizeof(T));
    check += value - value;
  }
  return check == 0;
}

}  // namespace
}  // namespace gluon_gc
