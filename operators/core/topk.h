// topk: the k elements that are largest in magnitude, exactly; among equals those of the lowest indices.
//
// A payload of k of n elements is k little-endian uint32 indices in ascending order, then their k values
// of T. It may start at any address. n must be below 2^32. A NaN counts as larger than infinity. Results
// are the same bits for every instruction set and number of threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/feedback.h"
#include "core/isa.h"

namespace gluon_gc {

template <typename T>
std::size_t topk_payload_bytes(std::size_t k) {
  return k * (sizeof(std::uint32_t) + sizeof(T));
}

// An element as one number: from the top its magnitude's bits, its index inverted, its sign. The larger
// number is the element to prefer.
template <typename T>
using TopkElement = std::conditional_t<sizeof(T) == 4, std::uint64_t, unsigned __int128>;

constexpr std::size_t topk_sample = 4096;    // elements that the threshold is estimated from
constexpr std::size_t topk_most_fold = 4;
constexpr std::size_t topk_segment = 16384;  // elements whose candidates lie side by side

// How to find the k among n: candidates are the elements at least as large as number `rank` of a sample,
// or all if rank is 0.
struct TopkPlan {
  std::size_t rank;
  std::size_t fold;      // the sample's elements are the largest of so many
  std::size_t capacity;  // candidates that there is room for
};

// The rank is three and a half standard deviations more than the k are expected to put into the sample, so
// that the threshold is hardly ever too high; the room is for six more than candidates are expected then.
inline TopkPlan topk_plan(std::size_t n, std::size_t k) {
  const std::size_t fold = n > 16 * topk_sample && k <= n / 16 ? topk_most_fold : 1;
  const std::size_t sample = fold * topk_sample;
  const double expected = n == 0 ? 0 : static_cast<double>(k) / static_cast<double>(n) * sample;
  const auto rank = static_cast<std::size_t>(expected + 3.5 * std::sqrt(expected) + 3);
  if (n <= 4 * sample || rank > topk_sample / 2) return {0, 1, n};
  const double room = static_cast<double>(rank) + 6 * std::sqrt(static_cast<double>(rank)) + 16;
  return {rank, fold, static_cast<std::size_t>(room * static_cast<double>(n / sample + 1))};
}

struct TopkSegment {
  std::size_t begin, count;
};

// Uninitialised memory for the kernel.
template <typename T>
struct TopkWorkspace {
  TopkElement<T>* candidates;  // plan.capacity
  TopkElement<T>* scratch;     // plan.capacity
  TopkSegment* segments;       // n / topk_segment + 1
};

// The kernels of one instruction set, which the functions below call.
template <Isa isa, typename T>
struct TopkKernels {
  static T compress(const T* gradient, std::size_t n, std::size_t k, T gradient_scale,
                    const FeedbackState<T>& state, const TopkPlan& plan, const TopkWorkspace<T>& workspace,
                    void* payload, int threads);
  static bool valid(const void* payload, std::size_t n, std::size_t k);
  static void decompress(const void* payload, std::size_t n, std::size_t k, T* out, int threads);
  static void add(const void* payload, std::size_t k, T* out);
};

extern template struct TopkKernels<Isa::scalar, float>;
extern template struct TopkKernels<Isa::avx2, float>;
extern template struct TopkKernels<Isa::avx512, float>;
extern template struct TopkKernels<Isa::scalar, double>;
extern template struct TopkKernels<Isa::avx2, double>;
extern template struct TopkKernels<Isa::avx512, double>;

// Compresses p, which is g = gradient * gradient_scale after momentum and feedback, to k <= n elements.
// Returns the largest |p|, which is not finite if an element is not (0 if n is 0).
//
// Reads gradient; reads and writes momentum and residual; writes payload. One pass over each: 4 bytes an
// element of float read, 8 more for feedback and 8 more for momentum. Sample, candidates and selection come
// on top, some 20 us for k = 1,000, and bound the speed where the pass is short. Values of which a sample
// tells too little (more equal ones than there is room for, large ones in just the places where it looks)
// take two more passes over p, at worst one for each bit of T.
template <typename T>
T topk_compress(const T* gradient, std::size_t n, std::size_t k, T gradient_scale,
                const FeedbackState<T>& state, void* payload, int threads, Isa isa = best_isa()) {
  const TopkPlan plan = topk_plan(n, k);
  const std::unique_ptr<TopkElement<T>[]> elements(new TopkElement<T>[2 * plan.capacity]);
  const std::unique_ptr<TopkSegment[]> segments(new TopkSegment[n / topk_segment + 1]);
  const TopkWorkspace<T> workspace{elements.get(), elements.get() + plan.capacity, segments.get()};
  return dispatch(isa, [&](auto chosen) {
    return TopkKernels<chosen, T>::compress(gradient, n, k, gradient_scale, state, plan, workspace, payload,
                                            threads);
  });
}

// Whether a payload's indices ascend and are below n, as those below take for granted. Reads the k indices.
template <typename T>
bool topk_valid(const void* payload, std::size_t n, std::size_t k, Isa isa = best_isa()) {
  return dispatch(isa, [&](auto chosen) { return TopkKernels<chosen, T>::valid(payload, n, k); });
}

// out = D(payload). Reads payload, writes out: 4 bytes an element of float, then those of the payload.
template <typename T>
void topk_decompress(const void* payload, std::size_t n, std::size_t k, T* out, int threads,
                     Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { TopkKernels<chosen, T>::decompress(payload, n, k, out, threads); });
}

// out += D(payload). Reads payload, reads and writes k elements of out.
template <typename T>
void topk_decompress_add(const void* payload, std::size_t k, T* out, Isa isa = best_isa()) {
  dispatch(isa, [&](auto chosen) { TopkKernels<chosen, T>::add(payload, k, out); });
}

// out = D(payload 0) + D(payload 1) + ..., added in that order in T; zeros if count is 0. Payload i starts
// at payloads + i * stride_bytes. Writes out once, then reads and writes count * k elements of it.
template <typename T>
void topk_decompress_sum(const void* payloads, std::size_t stride_bytes, std::size_t count, std::size_t n,
                         std::size_t k, T* out, int threads, Isa isa = best_isa()) {
  const auto* const first = static_cast<const char*>(payloads);
  topk_decompress(payloads, n, count == 0 ? 0 : k, out, threads, isa);
  for (std::size_t i = 1; i < count; ++i) topk_decompress_add(first + i * stride_bytes, k, out, isa);
}

}  // namespace gluon_gc
