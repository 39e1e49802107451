// The properties of a codec that do not depend on its device. abi_codec.h derives them from the options.
#pragma once

#include "core/codec.h"

namespace gluon_gc {

struct Plan {
  // The largest size of a payload, with its header.
  std::size_t payload_bytes() const { return header + needs.payload_bytes; }

  // The size of the array in which payloads are summed, a multiple of 64 bytes.
  std::size_t sum_bytes() const { return (n * itemsize + 63) / 64 * 64; }

  std::size_t n, itemsize;
  bool feedback;
  double mu;
  bool corrected;      // whether the ratio of learning rates multiplies the residual
  double decay;        // multiplies the residual too
  std::size_t header;  // bytes before the payload of the compressor; abi_codec.h
  Needs needs;
};

}  // namespace gluon_gc
