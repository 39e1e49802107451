// The instruction sets that kernels are compiled for, and the choice between them at run time.
//
// A kernel source is compiled once for each instruction set. Its entry points are a constant that has the
// set's name in its own (codec.h), or the static members of a class template over Isa, which keeps the copies
// apart for the linker; everything else in it is in an anonymous namespace. Nothing there may call inline
// functions of the standard library: the linker keeps one copy of those, and it might be one that this machine
// cannot run.
#pragma once

#include <type_traits>

namespace gluon_gc {

// Each one includes those before it.
enum class Isa { scalar, avx2, avx512 };

// The last one that this machine can run.
Isa best_isa();

// Returns call(std::integral_constant<Isa, isa>).
template <typename Call>
auto dispatch(Isa isa, Call call) {
  switch (isa) {
    case Isa::avx512: return call(std::integral_constant<Isa, Isa::avx512>());
    case Isa::avx2: return call(std::integral_constant<Isa, Isa::avx2>());
    default: return call(std::integral_constant<Isa, Isa::scalar>());
  }
}

}  // namespace gluon_gc
