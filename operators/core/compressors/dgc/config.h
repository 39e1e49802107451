// How dgc chooses its threshold, as in the reference implementation of DGC. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/sparse/config.h"
#include "core/compressors/topk/plan.h"
#include "core/options.h"

namespace gluon_gc {
namespace {

// The sample:
//   samples == n   all elements
//   strided        every stride-th element, from element (draw mod stride) on
//   else           the elements at `samples` draws modulo n
// The first threshold is the magnitude with rank `top` in the sample, in descending order.
//
// Adaptation, up to `iterations` times, but never if samples == n, where `count` elements reach the threshold:
//
//   count > selects and count > selects * upper    threshold *= upper
//   count <= selects and count < selects * lower   threshold *= lower
//   else                                           end
//
// Then the first `selects` elements that reach the threshold are sent. With resample, the first case ends the
// adaptation instead, and the `selects` largest elements are sent, of equal ones the first.
struct DgcConfig {
  DgcConfig(const Options& options, std::size_t n);

  // The number of draws from the random stream.
  std::uint64_t draws(std::size_t n) const { return samples == n ? 0 : strided ? 1 : samples; }

  // The largest number of elements in a sample.
  std::size_t sample_room(std::size_t n) const { return strided && samples != n ? n / stride + 1 : samples; }

  // The number of candidates to plan for. With more candidates than this, the threshold is too low, and no count is
  // needed.
  std::size_t least_room(std::size_t n) const {
    const double enough = upper > 1 ? static_cast<double>(selects) * upper : 0;
    const std::size_t least = enough < static_cast<double>(n) ? static_cast<std::size_t>(enough) : n;
    return least > selects ? least : selects;
  }

  std::size_t selects, most;  // elements to send: in this epoch, and at most in any epoch
  std::size_t samples, top, stride, iterations;
  double upper, lower;
  double max_norm;  // 0: no clipping
  bool strided, resample, nesterov, momentum_masking;
  SparseFormat format;  // the same in all epochs, so that an epoch can begin between compression and decoding
};

// The share of n elements that is sent in an epoch. It falls from epoch to epoch until the warm-up is over.
inline double ratio_of(const Options& options, std::size_t n, std::size_t epoch) {
  const double k = options.number("k"), all = static_cast<double>(n);
  if (!(k > 0)) refuse("k must be > 0, got %g", k);
  const double ratio = k < 1 ? k : k < all ? k / all : 1;
  const double epochs = options.number("warmup_epochs", 0);
  if (!(static_cast<double>(epoch) < epochs)) return ratio;
  double share;
  if (options.listed("warmup_coeff")) {
    share = options.element("warmup_coeff", epoch);
  } else {
    const double factor = options.number("warmup_coeff", __builtin_pow(ratio, 1 / (epochs + 1)));
    const double power = __builtin_pow(factor, static_cast<double>(epoch + 1));
    share = power > ratio ? power : ratio;
  }
  if (!(share > 0 && share <= 1)) refuse("warmup_coeff must give shares from 0 to 1, got %g", share);
  return share;
}

inline std::size_t ceiling(double x) { return static_cast<std::size_t>(__builtin_ceil(x)); }

// The number of elements that are sent in an epoch.
inline std::size_t selected(const Options& options, std::size_t n, std::size_t epoch) {
  return ceiling(static_cast<double>(n) * ratio_of(options, n, epoch));
}

// At least two elements of the sample are expected above the threshold. The stride is odd, because the row length of a
// tensor is often a power of two, and the sample must not stay in a few columns.
inline DgcConfig::DgcConfig(const Options& options, std::size_t n)
    : iterations(options.count("max_adaptation_iters")),
      upper(options.number("compress_upper_bound")),
      lower(options.number("compress_lower_bound")),
      max_norm(options.number("gradient_clipping", 0)),
      strided(options.flag("strided_sample")),
      resample(options.flag("resample")),
      nesterov(options.flag("nesterov")),
      momentum_masking(options.flag("momentum_masking")) {
  const double all = static_cast<double>(n), warmup = options.number("warmup_epochs", 0);
  const std::size_t epochs = warmup > 0 ? static_cast<std::size_t>(warmup) : 0;
  const std::size_t epoch = options.has("epoch") ? options.count("epoch") : epochs;
  const double ratio = n == 0 ? 1 : ratio_of(options, n, epoch);
  selects = selected(options, n, epoch);
  most = selected(options, n, epochs);
  format = sparse_format(options, n, most, sizeof(std::uint32_t));
  for (std::size_t e = 0; e < epochs; ++e) {
    const std::size_t count = selected(options, n, e);
    most = count > most ? count : most;
  }
  constexpr double least_share = 0.01;
  const double asked = options.number("sample_ratio"), share = asked > least_share ? asked : least_share;
  const std::size_t two = ceiling(2 / ratio);
  samples = n;
  stride = 1;
  if (share < 1 && ratio < 1 && n > two) {
    const std::size_t enough = ceiling(all * share), least = enough > two ? enough : two;
    stride = ceiling(all / static_cast<double>(least) / 32) * 32 + 1;
    while (n / stride < least) stride -= 8;
    samples = n / stride;
  }
  top = ceiling(static_cast<double>(samples) * ratio);
}

}  // namespace
}  // namespace gluon_gc
