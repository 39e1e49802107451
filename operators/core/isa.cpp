#include "core/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gluon_gc {
namespace {

#if defined(__x86_64__)

// Uses cpuid, because clang's __builtin_cpu_supports does not know "f16c".
bool has_f16c() {
  unsigned int eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

Isa detect() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    has_f16c() && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::scalar;
}

#else

Isa detect() { return last_isa; }

#endif

}  // namespace

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

}  // namespace gluon_gc
