// The codes of blockwise in a payload (core/compressors/blockwise/format.h), one byte or one element at a time.
#pragma once

#include "core/compressors/blockwise/format.h"
#include "cuda/grid.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// A part of a group: `width` bits of each code, from bit `shift` on.
struct CodePart {
  int width, shift;

  // The part that begins with this bit of the codes.
  __device__ static CodePart from(int shift, int bits) {
    int width = 8;
    for (int before = 0;; width /= 2) {
      if (!(bits & width)) continue;
      if (before == shift) return {width, shift};
      before += width;
    }
  }

  __device__ uint32 mask() const { return (1u << width) - 1; }
  __device__ int bytes() const { return 16 * width; }
};

// Byte `index` of the packed codes, one byte each.
__device__ inline uint8 packed_byte(const uint8* codes, uint32 index, int bits) {
  const uint32 group = index / (16 * bits);
  int at = index % (16 * bits);
  CodePart part = CodePart::from(0, bits);
  for (; at >= part.bytes(); part = CodePart::from(part.shift + part.width, bits)) at -= part.bytes();
  uint32 byte = 0;
  for (int k = 0; k < 8 / part.width; ++k) {
    const uint32 code = codes[group * blockwise_group + at + k * part.bytes()];
    byte |= (code >> part.shift & part.mask()) << part.width * k;
  }
  return static_cast<uint8>(byte);
}

// The code of element i.
__device__ inline uint32 code_at(const uint8* payload, Size i, int bits) {
  const uint8* const group = payload + i / blockwise_group * (16 * bits);
  const int place = i % blockwise_group;
  uint32 code = 0;
  for (int shift = 0; shift < bits;) {
    const CodePart part = CodePart::from(shift, bits);
    const uint32 byte = group[16 * shift + place % part.bytes()];
    code |= (byte >> place / part.bytes() * part.width & part.mask()) << shift;
    shift += part.width;
  }
  return code;
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
