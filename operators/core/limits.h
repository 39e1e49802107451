// Plain loops over memory, for benchmarks. They bound the speed of any kernel that moves the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace gluon_gc {

// Each loop makes one pass over each array. The comments give the bytes that it reads + writes for each element. A loop
// prefetches if that makes it faster.
template <Isa isa>
struct LimitKernels {
  static float sum(const float* a, std::size_t n, int threads);                      // 4 + 0
  static void fill(float* a, std::size_t n, int threads);                            // 0 + 4
  static void copy(const float* a, float* b, std::size_t n, int threads);            // 4 + 4
  static void add_constant(float* a, std::size_t n, int threads);                    // 4 + 4
  static void add(float* a, const float* b, std::size_t n, int threads);             // 8 + 4: a[n + i] = a[i] + b[i]
  static void add_twice(float* a, float* b, const float* c, std::size_t n, int threads);  // 12 + 8: the same, twice
  static void narrow(const std::uint32_t* a, std::uint16_t* b, std::size_t n, int threads);  // 4 + 2
  static void widen(const std::uint16_t* a, std::uint32_t* b, std::size_t n, int threads);   // 2 + 4
};

extern template struct LimitKernels<Isa::scalar>;
extern template struct LimitKernels<Isa::avx2>;
extern template struct LimitKernels<Isa::avx512>;

}  // namespace gluon_gc
