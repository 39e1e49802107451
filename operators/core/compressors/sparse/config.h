// The options of payloads of topk and dgc, for the CPU and the GPU. For kernel sources only (see isa.h).
#pragma once

#include <cstdint>

#include "core/compressors/sparse/format.h"
#include "core/options.h"

namespace gluon_gc {
namespace {

// The layout of payloads with about `count` of n elements. The lists begin at `begin`.
inline SparseFormat sparse_format(const Options& options, std::size_t n, std::size_t count, std::size_t begin) {
  const double value_bits = options.number("value_bits", 32);
  if (value_bits != 32 && value_bits != 16) refuse("value_bits must be 32 or 16, got %g", value_bits);
  const int low_bits = count == 0 ? 0 : 63 - __builtin_clzll(n / count);
  const auto most_upper = static_cast<std::uint32_t>(n == 0 ? 0 : (n - 1) >> low_bits);
  return {most_upper, static_cast<std::uint8_t>(low_bits), static_cast<std::uint8_t>(begin), value_bits == 16};
}

}  // namespace
}  // namespace gluon_gc
