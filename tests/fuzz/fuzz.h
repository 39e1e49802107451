// Code that the harnesses share: reading the fuzzer's bytes, memory between redzones, and expectations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

namespace gluon_gc {

// Aborts unless a condition holds; the fuzzer counts that as a crash.
inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not true: %s\n", what);
  std::abort();
}

// A hash (FNV-1a) of results, which replay.cpp prints. Machines of every architecture must agree on it.
inline std::uint64_t digest = 0xcbf29ce484222325;

inline void add_to_digest(const void* results, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) digest = (digest ^ static_cast<const std::uint8_t*>(results)[i]) * 0x100000001b3;
}

// The remaining bytes of an input. Values beyond its end are 0.
struct Input {
  template <typename Value>
  Value take() {
    Value value{};
    const std::size_t count = sizeof(value) < size ? sizeof(value) : size;
    std::memcpy(&value, bytes(count), count);
    return value;
  }

  // Reads up to a zero byte, which is skipped.
  std::string text() {
    const std::size_t length = strnlen(reinterpret_cast<const char*>(data), size);
    const std::string text(reinterpret_cast<const char*>(bytes(length)), length);
    take<char>();
    return text;
  }

  const std::uint8_t* bytes(std::size_t count) {
    const std::uint8_t* const begin = data;
    data += count;
    size -= count;
    return begin;
  }

  const std::uint8_t* data;
  std::size_t size;
};

// Memory of an exact size, aligned to 64 bytes; AddressSanitizer guards both ends.
class Room {
 public:
  explicit Room(std::size_t size, int fill = 0) : size(size) {
    expect(posix_memalign(&data_, 64, size) == 0, "there is memory");
    std::memset(data_, fill, size);
  }
  Room(const void* from, std::size_t size) : Room(size) {
    if (size != 0) std::memcpy(data_, from, size);
  }
  Room(const Room& other) : Room(other.data_, other.size) {}
  Room& operator=(const Room&) = delete;
  ~Room() { std::free(data_); }

  template <typename Value = std::uint8_t>
  Value* as() const {
    return static_cast<Value*>(data_);
  }

  const std::size_t size;

 private:
  void* data_;
};

template <typename T>
bool same_floats(const T* a, const T* b, std::size_t n) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  for (std::size_t i = 0; i < n; ++i) {
    Bits x, y;
    std::memcpy(&x, a + i, sizeof(x));
    std::memcpy(&y, b + i, sizeof(y));
    if (x != y && !(a[i] != a[i] && b[i] != b[i])) return false;
  }
  return true;
}

// Whether two arrays are equal bit for bit; any NaN equals any other NaN.
inline bool same_values(const Room& a, const Room& b, std::size_t itemsize) {
  if (a.size != b.size) return false;
  return itemsize == sizeof(float) ? same_floats(a.as<float>(), b.as<float>(), a.size / itemsize)
                                   : same_floats(a.as<double>(), b.as<double>(), a.size / itemsize);
}

template <typename T>
void add_floats_to_digest(const T* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const T value = values[i] == values[i] ? values[i] : std::numeric_limits<T>::quiet_NaN();
    add_to_digest(&value, sizeof(value));
  }
}

// Adds an array to the digest; all NaNs count as the same one.
inline void add_values_to_digest(const Room& values, std::size_t itemsize) {
  itemsize == sizeof(float) ? add_floats_to_digest(values.as<float>(), values.size / itemsize)
                            : add_floats_to_digest(values.as<double>(), values.size / itemsize);
}

}  // namespace gluon_gc
