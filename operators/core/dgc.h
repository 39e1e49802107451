// dgc, Deep Gradient Compression: gradients are accumulated, with momentum, until they are among the largest.
//
// g = gradient * gradient_scale, made shorter if it is longer than max_norm; momentum m and velocity v become
//   nesterov: m = mu (m + g), v = v + m + g;   else: m = mu m + g, v = v + m;   without momentum: v = v + g;
// then the elements of v that reach a threshold are sent, and v is set to 0 there, as is m with
// momentum_masking. The threshold is one that `top` elements of a sample of |v| reach, and is adapted until
// about `selects` elements reach it.
//
// A payload is little-endian and may start at any address: its length in bytes, itself included, as uint32;
// the indices of its elements, uint32, ascending; then their values, in T or float16. What is left of the
// capacity has no meaning. n must be below 2^32. Results are the same bits for every instruction set and
// number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/isa.h"
#include "core/stream.h"
#include "core/topk.h"

namespace gluon_gc {

// The sample is all n elements if samples == n. Else, if strided, every stride-th, from (draw mod stride) on;
// or those at `samples` draws modulo n.
//
// Unless samples == n, what is done up to `iterations` times: if more than selects * upper elements (and more
// than selects) reach the threshold, it is multiplied by `upper`, or with `resample` just the largest
// `selects` are sent, of equal ones the first; if fewer than selects * lower reach it, it is multiplied by
// `lower`. Of those that reach it in the end the first `selects` are sent.
struct DgcConfig {
  std::size_t selects, samples, top, stride, iterations;
  double upper, lower;
  double max_norm;  // l2; 0: any
  bool strided, resample, nesterov, momentum_masking, half_values;
};

// Whether the numbers fit n elements and each other.
inline bool dgc_allows(const DgcConfig& c, std::size_t n) {
  const bool fits = c.selects <= n && c.samples <= n && c.top <= c.samples;
  const bool enough = c.samples == n || !c.strided || (c.stride >= 1 && n / c.stride >= c.top);
  return fits && enough && (n == 0 || (c.selects >= 1 && c.top >= 1));
}

// The most elements of a sample.
inline std::size_t dgc_sample_room(const DgcConfig& c, std::size_t n) {
  return c.strided && c.samples != n ? n / c.stride + 1 : c.samples;
}

template <typename T>
std::size_t dgc_element_bytes(bool half_values) {
  return sizeof(std::uint32_t) + (half_values ? sizeof(std::uint16_t) : sizeof(T));
}

// The length of a payload of so many elements.
template <typename T>
std::size_t dgc_capacity(std::size_t most, bool half_values) {
  return sizeof(std::uint32_t) + most * dgc_element_bytes<T>(half_values);
}

template <typename T>
struct DgcState {
  T* momentum;  // n, or null
  T mu;
  T* velocity;  // n
};

// Uninitialised memory for the kernel, and what it is for.
template <typename T>
struct DgcWorkspace {
  TopkPlan plan;
  TopkWorkspace<T> candidates;
  std::uint64_t* sample;  // dgc_sample_room
};

// The kernels of one instruction set, which the functions below call.
template <Isa isa, typename T>
struct DgcKernels {
  static T compress(const T* gradient, std::size_t n, T gradient_scale, const DgcConfig& config,
                    const DgcState<T>& state, Stream& stream, const DgcWorkspace<T>& workspace,
                    void* payload, int threads);
  static bool valid(const void* payload, std::size_t capacity, std::size_t n, bool half_values);
  static void decompress(const void* payload, std::size_t n, bool half_values, T* out, int threads);
  static void add(const void* payload, bool half_values, T* out);
};

extern template struct DgcKernels<Isa::scalar, float>;
extern template struct DgcKernels<Isa::avx2, float>;
extern template struct DgcKernels<Isa::avx512, float>;
extern template struct DgcKernels<Isa::scalar, double>;
extern template struct DgcKernels<Isa::avx2, double>;
extern template struct DgcKernels<Isa::avx512, double>;

// Compresses to a payload of up to dgc_capacity(config.selects) bytes, for a config that dgc_allows. Takes one
// draw if the sample is strided, else `samples` draws; none if samples == n. Returns 0, or NaN if an element
// of v is not finite, whether it was sent or not. The norm of doubles overflows where an element is above
// 1e154: with max_norm they are not finite then. A value that float16 cannot hold is sent as infinity.
//
// Reads gradient, reads and writes velocity and momentum, one pass: 12 bytes an element of float, 8 more for
// momentum; clipping reads gradient once more. Candidates are collected in that pass, by a lower threshold
// from a small sample of its own, as topk does; the elements of the sample that are candidates give the
// threshold, and are counted as it is adapted. v is looked at again only if a threshold turns out to be below
// theirs, or there are too many of them.
template <typename T>
T dgc_compress(const T* gradient, std::size_t n, T gradient_scale, const DgcConfig& config,
               const DgcState<T>& state, Stream& stream, void* payload, int threads, Isa isa = best_isa()) {
  // So many that whether there are too many of them need not be counted again.
  const double enough = config.upper > 1 ? static_cast<double>(config.selects) * config.upper : 0;
  const std::size_t least = enough < static_cast<double>(n) ? static_cast<std::size_t>(enough) : n;
  const TopkPlan plan = topk_plan(n, least > config.selects ? least : config.selects);
  const std::unique_ptr<TopkElement<T>[]> elements(new TopkElement<T>[2 * plan.capacity]);
  const std::unique_ptr<TopkSegment[]> segments(new TopkSegment[n / topk_segment + 1]);
  const std::unique_ptr<std::uint64_t[]> sample(new std::uint64_t[dgc_sample_room(config, n)]);
  const DgcWorkspace<T> workspace{
      plan, {elements.get(), elements.get() + plan.capacity, segments.get()}, sample.get()};
  return dispatch(isa, [&](auto chosen) {
    return DgcKernels<chosen, T>::compress(gradient, n, gradient_scale, config, state, stream, workspace,
                                           payload, threads);
  });
}

// Whether what a payload says of its length fits `capacity` bytes, and its indices ascend and are below n, as
// those below take for granted. Reads the indices.
template <typename T>
bool dgc_valid(const void* payload, std::size_t capacity, std::size_t n, bool half_values,
               Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) {
    return DgcKernels<chosen, T>::valid(payload, capacity, n, half_values);
  });
}

// out = D(payload). Reads payload, writes out: 4 bytes an element of float, then those of the payload.
template <typename T>
void dgc_decompress(const void* payload, std::size_t n, bool half_values, T* out, int threads,
                    Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { DgcKernels<chosen, T>::decompress(payload, n, half_values, out, threads); });
}

// out += D(payload), in T. Reads payload, reads and writes its elements of out.
template <typename T>
void dgc_decompress_add(const void* payload, bool half_values, T* out, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { DgcKernels<chosen, T>::add(payload, half_values, out); });
}

// out = D(payload 0) + D(payload 1) + ..., added in that order in T; zeros if count is 0. Payload i starts
// at payloads + i * stride_bytes. Writes out once, then reads and writes the payloads' elements of it.
template <typename T>
void dgc_decompress_sum(const void* payloads, std::size_t stride_bytes, std::size_t count, std::size_t n,
                        bool half_values, T* out, int threads, Isa isa = best_isa()) {
  const std::uint32_t empty = sizeof(empty);
  const auto* const first = static_cast<const char*>(payloads);
  dgc_decompress(count == 0 ? &empty : payloads, n, half_values, out, threads, isa);
  for (std::size_t i = 1; i < count; ++i) dgc_decompress_add(first + i * stride_bytes, half_values, out, isa);
}

}  // namespace gluon_gc
