// The options of blockwise, for the CPU and the GPU. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/blockwise/format.h"
#include "core/options.h"

namespace gluon_gc {
namespace {

// The layout of payloads of n elements.
inline BlockwiseFormat blockwise_format(const Options& options, std::size_t n) {
  const std::size_t block = options.count("block"), bits = options.count("bits");
  if (block < blockwise_least_block || block > blockwise_most_block || (block & (block - 1)) != 0) {
    refuse("block must be a power of two from 64 to 2048, got %zu", block);
  }
  if (bits < 2 || bits > 8) refuse("bits must be a whole number from 2 to 8, got %zu", bits);
  return {n,
          block,
          static_cast<int>(bits),
          options.flag("symmetric"),
          options.flag("hadamard"),
          options.flag("stochastic")};
}

}  // namespace
}  // namespace gluon_gc
