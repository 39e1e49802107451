// What dgc is to select, and how. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/topk_plan.h"
#include "core/options.h"

namespace gluon_gc {
namespace {

// The sample is all n elements if samples == n. Else, if strided, every stride-th, from (draw mod stride) on;
// or those at `samples` draws modulo n. The first threshold is one that `top` elements of it reach.
//
// Unless samples == n, what is done up to `iterations` times: if more than selects * upper elements (and more
// than selects) reach the threshold, it is multiplied by `upper`, or with `resample` just the largest
// `selects` are sent, of equal ones the first; if fewer than selects * lower reach it, it is multiplied by
// `lower`. Of those that reach it in the end the first `selects` are sent.
struct DgcConfig {
  DgcConfig(const Options& options, std::size_t n);

  std::uint64_t draws(std::size_t n) const { return samples == n ? 0 : strided ? 1 : samples; }

  // The most elements of a sample.
  std::size_t sample_room(std::size_t n) const { return strided && samples != n ? n / stride + 1 : samples; }

  // So many candidates that whether there are too many of them need not be counted again.
  std::size_t least_room(std::size_t n) const {
    const double enough = upper > 1 ? static_cast<double>(selects) * upper : 0;
    const std::size_t least = enough < static_cast<double>(n) ? static_cast<std::size_t>(enough) : n;
    return least > selects ? least : selects;
  }

  std::size_t selects, most;  // of the epoch, and of any
  std::size_t samples, top, stride, iterations;
  double upper, lower;
  double max_norm;  // l2; 0: any
  bool strided, resample, nesterov, momentum_masking, half_values;
};

// The share of n elements that is sent in an epoch: less from one to the next, until the warm-up is over.
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

inline std::size_t selected(const Options& options, std::size_t n, std::size_t epoch) {
  return ceiling(static_cast<double>(n) * ratio_of(options, n, epoch));
}

// As in the reference implementation: at least two of the sample are expected above the threshold, and the
// distance between them is odd, since powers of two may be a tensor's row length.
inline DgcConfig::DgcConfig(const Options& options, std::size_t n)
    : iterations(options.count("max_adaptation_iters")),
      upper(options.number("compress_upper_bound")),
      lower(options.number("compress_lower_bound")),
      max_norm(options.number("gradient_clipping", 0)),
      strided(options.flag("strided_sample")),
      resample(options.flag("resample")),
      nesterov(options.flag("nesterov")),
      momentum_masking(options.flag("momentum_masking")),
      half_values(options.flag("fp16_values")) {
  const double all = static_cast<double>(n), warmup = options.number("warmup_epochs", 0);
  const std::size_t epochs = warmup > 0 ? static_cast<std::size_t>(warmup) : 0;
  const std::size_t epoch = options.has("epoch") ? options.count("epoch") : epochs;
  const double ratio = n == 0 ? 1 : ratio_of(options, n, epoch);
  selects = selected(options, n, epoch);
  most = selected(options, n, epochs);
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
