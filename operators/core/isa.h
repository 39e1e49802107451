// The instruction sets that kernels are compiled for, and the choice between them at run time. On aarch64 that is only
// the scalar code, which the compiler turns into NEON instructions. operators/CMakeLists.txt has the same lists.
//
// Rules for kernel sources, which CMake compiles once for each instruction set:
// - The linker must be able to tell the copies apart. So the entry points are a constant with the instruction set in
//   its name (codec.h), or static members of a class template over Isa. All else is in an anonymous namespace.
// - Do not call inline functions of the standard library. The linker keeps only one copy of such a function, and this
//   copy may use instructions that the CPU lacks.
#pragma once

#include <type_traits>

namespace gluon_gc {

// Each instruction set includes the ones before it.
enum class Isa { scalar, avx2, avx512 };

#if defined(__x86_64__)
constexpr Isa last_isa = Isa::avx512;
#else
constexpr Isa last_isa = Isa::scalar;
#endif

// The best instruction set of this CPU.
Isa best_isa();

// Returns call(std::integral_constant<Isa, isa>).
template <typename Call>
auto dispatch(Isa isa, Call call) {
  if constexpr (last_isa == Isa::avx512) {
    if (isa == Isa::avx512) return call(std::integral_constant<Isa, Isa::avx512>());
    if (isa == Isa::avx2) return call(std::integral_constant<Isa, Isa::avx2>());
  }
  return call(std::integral_constant<Isa, Isa::scalar>());
}

}  // namespace gluon_gc
