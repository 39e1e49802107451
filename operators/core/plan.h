// The properties of a codec, wherever it runs. abi_codec.h makes them from the options.
#pragma once

#include "core/codec.h"

namespace gluon_gc {

struct Plan {
  std::size_t payload_bytes() const { return header + needs.payload_bytes; }
  std::size_t sum_bytes() const { return (n * itemsize + 63) / 64 * 64; }

  std::size_t n, itemsize;
  bool feedback;
  double mu;
  bool corrected;      // whether the ratio multiplies the residual
  std::size_t header;  // bytes in front of a payload
  Needs needs;
};

}  // namespace gluon_gc
