// The random stream that workers and servers share: xorshift128+ with shifts 23, 17 and 26, as in BytePS.
#pragma once

#include <cstdint>

namespace gluon_gc {

struct Stream {
  // The next draw.
  std::uint64_t operator()() {
    std::uint64_t t = state[0];
    const std::uint64_t s = state[1];
    t ^= t << 23;
    t ^= t >> 17;
    t ^= s ^ (s >> 26);
    state[0] = s;
    state[1] = t;
    return t + s;
  }

  std::uint64_t state[2];
};

}  // namespace gluon_gc
