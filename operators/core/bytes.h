// Values at addresses of any alignment. For kernel sources only (see isa.h).
#pragma once

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

}  // namespace
}  // namespace gluon_gc
