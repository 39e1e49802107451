// The options of blocktopk, for the CPU and the GPU. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/blocktopk/format.h"
#include "core/options.h"

namespace gluon_gc {
namespace {

// The layout of payloads of n elements.
inline BlocktopkFormat blocktopk_format(const Options& options, std::size_t n) {
  const std::size_t block = options.count("block"), value_bits = options.count("value_bits");
  if (block < blocktopk_least_block || block > blocktopk_most_block || (block & (block - 1)) != 0) {
    refuse("block must be a power of two from 256 to 4096, got %zu", block);
  }
  if (value_bits < 2 || value_bits > 32 || (value_bits & (value_bits - 1)) != 0) {
    refuse("value_bits must be 32, 16, 8, 4 or 2, got %zu", value_bits);
  }
  const double k = options.number("k");
  return {n,
          block,
          element_count(k, block),
          n % block == 0 ? 0 : element_count(k, n % block),
          __builtin_ctzll(block),
          static_cast<int>(value_bits)};
}

}  // namespace
}  // namespace gluon_gc
