// The generator of the random stream: xorshift128+ with shifts 23, 17 and 26, as in BytePS. For host and device.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {

struct Stream {
  // Returns the next draw. Always inlined, because kernel sources must not share a copy (see isa.h).
  GLUON_GC_HOST_DEVICE uint64 operator()() {
    uint64 t = state[0];
    const uint64 s = state[1];
    t ^= t << 23;
    t ^= t >> 17;
    t ^= s ^ (s >> 26);
    state[0] = s;
    state[1] = t;
    return t + s;
  }

  uint64 state[2];
};

namespace {

// The upper 64 bits of a * b.
GLUON_GC_HOST_DEVICE uint64 upper_product(uint64 a, uint64 b) {
#ifdef __CUDACC__
  return __umul64hi(a, b);
#else
  return static_cast<uint64>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// x mod n without a division. The quotient from `inverse` is exact or 1 too small, which the comparison corrects.
struct Modulo {
  GLUON_GC_HOST_DEVICE explicit Modulo(uint64 n) : n(n), inverse(~uint64{0} / n) {}

  GLUON_GC_HOST_DEVICE uint64 operator()(uint64 x) const {
    const uint64 remainder = x - upper_product(x, inverse) * n;
    return remainder < n ? remainder : remainder - n;
  }

  const uint64 n, inverse;
};

}  // namespace
}  // namespace gluon_gc
