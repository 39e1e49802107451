// The options of randomk, for the CPU and the GPU. For kernel sources only (see isa.h).
#pragma once

#include "core/options.h"

namespace gluon_gc {
namespace {

struct RandomkConfig {
  RandomkConfig(const Options& options, std::size_t n)
      : k(element_count(options.number("k"), n)), scaling(!options.has("scaling") || options.flag("scaling")) {}

  // The factor of the values in a payload. n / k makes randomk unbiased, except for elements that are drawn twice.
  template <typename T>
  T factor(std::size_t n, bool feedback) const {
    return scaling && !feedback && k != 0 ? static_cast<T>(n) / static_cast<T>(k) : T{1};
  }

  std::size_t k;
  bool scaling;
};

}  // namespace
}  // namespace gluon_gc
