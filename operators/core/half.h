// Conversion between float32 and IEEE float16, which is stored as its 16 bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace gluon_gc {

// The kernels of one instruction set, which the functions below call.
template <Isa isa>
struct HalfKernels {
  static void from_float(const float* x, std::size_t n, float scale, std::uint16_t* out, int threads);
  static void to_float(const std::uint16_t* x, std::size_t n, float* out, int threads);
};

extern template struct HalfKernels<Isa::scalar>;
extern template struct HalfKernels<Isa::avx2>;
extern template struct HalfKernels<Isa::avx512>;

// out = x * scale, multiplied in float32, then rounded to nearest even. Values that are too large become infinite, and
// NaN stays NaN. One pass: reads 4 bytes an element, writes 2.
inline void half_from_float(const float* x, std::size_t n, float scale, std::uint16_t* out,
                            int threads = 1, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { HalfKernels<chosen>::from_float(x, n, scale, out, threads); });
}

// out = x, exactly. One pass: reads 2 bytes an element, writes 4.
inline void float_from_half(const std::uint16_t* x, std::size_t n, float* out, int threads = 1,
                            Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { HalfKernels<chosen>::to_float(x, n, out, threads); });
}

}  // namespace gluon_gc
