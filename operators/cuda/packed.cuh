// Packed lists: numbers of the same few bits, from the lowest bit of the first byte on.
#pragma once

#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// Writes `count` numbers of at most 16 bits, number(i), to a list that starts at any address. The unused bits of the
// last byte are clear. A thread of the block writes a byte, so that no two threads write to the same one.
template <typename Number>
__device__ inline void write_packed(uint8* to, uint32 count, uint32 bits, Number number) {
  const uint32 all_bits = count * bits;
  for (uint32 bit = 8 * threadIdx.x; bit < all_bits; bit += 8 * block_threads) {
    uint32 byte = 0;
    for (uint32 i = bit / bits; i < count && i * bits < bit + 8; ++i) {
      byte |= i * bits < bit ? number(i) >> (bit - i * bits) : number(i) << (i * bits - bit);
    }
    to[bit / 8] = static_cast<uint8>(byte);
  }
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
