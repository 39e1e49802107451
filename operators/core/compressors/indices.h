// The indices in a sparse payload: ascending uint32, unaligned. For kernel sources only (see isa.h).
#pragma once

#include "core/bytes.h"
#include "core/parallel.h"

namespace gluon_gc {
namespace {

struct Indices {
  std::uint32_t operator[](std::size_t i) const {
    return read<std::uint32_t>(begin + i * sizeof(std::uint32_t));
  }

  // Whether the indices ascend and are below n.
  bool valid(std::size_t n) const {
    std::uint64_t least = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t index = (*this)[i];
      if (index < least || index >= n) return false;
      least = index + 1;
    }
    return true;
  }

  // Sets the elements with these indices to 0, in an array of n elements.
  template <typename T>
  void clear(T* array, std::size_t n, int threads) const {
    const Indices index = *this;
    Blocks<16384>(n).run_parts(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
      std::size_t first = 0, last = index.count;
      while (first < last && index[first] < begin) ++first;
      while (last > first && index[last - 1] >= end) --last;
      constexpr std::size_t ahead = 24;
      for (std::size_t i = first; i < last; ++i) {
        if (i + ahead < last) __builtin_prefetch(array + index[i + ahead], 1);
        array[index[i]] = 0;
      }
    });
  }

  const char* begin;
  std::size_t count;
};

}  // namespace
}  // namespace gluon_gc
