#include "core/isa.h"

namespace gluon_gc {
namespace {

Isa detect() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::scalar;
}

}  // namespace

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

}  // namespace gluon_gc
