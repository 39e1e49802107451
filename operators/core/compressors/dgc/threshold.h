// The choice of the elements that dgc sends: the threshold from its sample, and the adaptation of the threshold
// (config.h). For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/dgc/config.h"
#include "core/compressors/draws.h"
#include "core/compressors/topk/candidates.h"
#include "core/sums.h"

namespace gluon_gc {
namespace {

// The workspace of a call; uninitialised.
template <typename T>
struct DgcWorkspace {
  DgcWorkspace(void* memory, const TopkPlan& plan, const DgcConfig& config, std::size_t n)
      : plan(plan),
        candidates(memory, plan),
        sample(reinterpret_cast<std::uint64_t*>(static_cast<char*>(memory) + TopkWorkspace<T>::bytes(plan, n))),
        sums(reinterpret_cast<double*>(sample + config.sample_room(n))) {}

  static std::size_t bytes(const TopkPlan& plan, const DgcConfig& config, std::size_t n) {
    return TopkWorkspace<T>::bytes(plan, n) + config.sample_room(n) * sizeof(std::uint64_t) + sums_bytes(n);
  }

  const TopkPlan plan;
  const TopkWorkspace<T> candidates;
  std::uint64_t* const sample;  // sample_room elements
  double* const sums;           // scratch memory of the norm
};

// A lower bound of the elements that reach the threshold. All other elements are smaller.
template <typename T>
TopkElement<T> least_element(Bits<T> threshold) {
  return static_cast<TopkElement<T>>(threshold) << 33;
}

// The velocity after the sweep, with the candidates that the sweep has found.
template <typename T>
struct Velocity {
  Velocity(T* v, std::size_t n, const DgcWorkspace<T>& workspace, Found<T> found, int threads)
      : p(nullptr, 0, {nullptr, nullptr, 0, nullptr, v, 0}),
        v(v),
        n(n),
        plan(workspace.plan),
        workspace(workspace.candidates),
        found(found),
        threads(threads) {}

  // Whether the candidates in the workspace include all elements that reach the threshold.
  bool known(Bits<T> threshold) const { return found.count <= plan.capacity && threshold >= found.threshold; }

  // Returns how many elements reach the threshold, or a lower bound that is at least `enough`.
  std::size_t reaching(Bits<T> threshold, std::size_t enough) const {
    if (known(threshold)) {
      const TopkElement<T> least = least_element<T>(threshold);
      std::size_t count = 0;
      for (std::size_t i = 0; i < found.count; ++i) count += workspace.candidates[i] >= least;
      return count;
    }
    if (threshold <= found.threshold && found.count >= enough) return found.count;
    return threshold == 0 ? n : count_at_least(p, threshold, n, threads);
  }

  bool finite() const {
    return reaching(infinity_bits<T>, 1) == 0;
  }

  const Corrected<T> p;  // v, in the form that the functions of topk take
  const T* const v;
  const std::size_t n;
  const TopkPlan plan;
  const TopkWorkspace<T> workspace;
  const Found<T> found;
  const int threads;
};

// Copies the candidates among the elements start, start + stride, ... to scratch. Returns their number.
template <typename T>
std::size_t strided_candidates(const Velocity<T>& velocity, std::size_t start, std::size_t stride) {
  const Modulo modulo(stride);
  std::size_t count = 0;
  for (std::size_t i = 0; i < velocity.found.count; ++i) {
    const TopkElement<T> candidate = velocity.workspace.candidates[i];
    velocity.workspace.scratch[count] = candidate;
    count += modulo(index_of<T>(candidate) + stride - start) == 0;
  }
  return count;
}

// The magnitude with rank config.top in the sample.
template <typename T>
Bits<T> sample_threshold(const Velocity<T>& velocity, const DgcConfig& config, Stream stream,
                         std::uint64_t* sample) {
  const T* const v = velocity.v;
  const auto magnitude = [=](std::size_t i) { return magnitude_bits(v[i]); };
  const bool whole = config.samples == velocity.n;
  std::size_t count = 0;
  if (whole || config.strided) {
    const std::size_t stride = whole ? 1 : config.stride, start = whole ? 0 : stream() % stride;
    if (velocity.known(velocity.found.threshold)) {
      const std::size_t candidates = strided_candidates(velocity, start, stride);
      TopkElement<T>* const scratch = velocity.workspace.scratch;
      if (candidates >= config.top) {
        return static_cast<Bits<T>>(select(scratch, candidates, config.top) >> 33);
      }
    }
    for (std::size_t i = start; i < velocity.n; i += stride) sample[count++] = magnitude(i);
  } else {
    const auto fetch = [=](std::size_t i) { __builtin_prefetch(v + i); };
    for_each_draw(stream, velocity.n, config.samples, 0, velocity.n, fetch,
                  [=](std::size_t draw, std::size_t i) { sample[draw] = magnitude(i); });
    count = config.samples;
  }
  return static_cast<Bits<T>>(select(sample, count, config.top));
}

// The elements to send: the first `count` that reach the threshold, or the largest `count`.
template <typename T>
struct Choice {
  Bits<T> threshold;
  bool largest;
  std::size_t count;
};

template <typename T>
Choice<T> choose_elements(const Velocity<T>& velocity, const DgcConfig& config, Stream stream,
                          std::uint64_t* sample) {
  const std::size_t selects = config.selects;
  const bool enough_found = too_many(velocity.found.count, selects, config.upper);
  const std::size_t enough = enough_found ? velocity.found.count : velocity.n + 1;
  Bits<T> threshold = sample_threshold(velocity, config, stream, sample);
  const std::size_t iterations = config.samples == velocity.n ? 0 : config.iterations;
  for (std::size_t i = 0; i < iterations; ++i) {
    const std::size_t count = velocity.reaching(threshold, enough);
    if (too_many(count, selects, config.upper)) {
      if (config.resample) return {threshold, true, selects};
      threshold = scaled_threshold<T>(threshold, config.upper);
    } else if (too_few(count, selects, config.lower)) {
      threshold = scaled_threshold<T>(threshold, config.lower);
    } else {
      break;
    }
  }
  const std::size_t count = velocity.reaching(threshold, selects);
  return {threshold, false, count < selects ? count : selects};
}

}  // namespace
}  // namespace gluon_gc
