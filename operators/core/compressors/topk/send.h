// Sends the k largest elements, given the candidates. A writer appends them to a payload: writer.add(element) is called
// writer.left times, in ascending order of the indices. For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/topk/candidates.h"

namespace gluon_gc {
namespace {

// Sends the first writer.left candidates that are >= `last`. There are at least that many.
template <typename T, typename Writer>
void send_candidates(const TopkWorkspace<T>& workspace, std::size_t n, TopkElement<T> last, Writer& writer) {
  TopkElement<T>* const sent = workspace.scratch;
  std::size_t count = 0;
  for (std::size_t s = 0; s < (n + topk_segment - 1) / topk_segment; ++s) {
    const TopkElement<T>* const candidates = workspace.candidates + workspace.segments[s].begin;
    for (std::size_t i = 0; i < workspace.segments[s].count; ++i) {
      sent[count] = candidates[i];  // no branch: it would be unpredictable
      count += candidates[i] >= last;
    }
  }
  for (std::size_t i = 0, k = writer.left; i < k; ++i) writer.add(sent[i]);
}

// Sends the elements with a magnitude above `limit`, and the first `equal` elements with exactly this magnitude.
template <typename T, typename Writer>
void send_with_ties(const Corrected<T>& p, std::size_t n, Bits<T> limit, std::size_t equal, Writer& writer) {
  sweep<lanes>(0, n, [=, &p, &equal, &writer](std::size_t i, auto present) {
    const Vec<T> x = p(i, present);
    const std::uint32_t larger = magnitude_at_least(x, limit + 1);
    std::uint32_t left = equal == 0 ? larger : magnitude_at_least(x, limit) & all_bits(present);
    for (; left != 0 && writer.left != 0; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      const bool is_equal = (larger >> lane & 1) == 0;
      if (is_equal && equal == 0) continue;
      equal -= is_equal;
      writer.add(element(p[i + lane], i + lane));
    }
  });
}

// Sends the k largest elements of p, with the candidates in `found` if they are good enough, else with new ones.
template <typename T, typename Writer>
void send_largest(const Corrected<T>& p, Found<T> found, std::size_t n, std::size_t k, const TopkPlan& plan,
                  const TopkWorkspace<T>& workspace, int threads, Writer& writer) {
  if (k == 0) return;
  const auto reaching = [=](Bits<T> magnitude) { return count_at_least(p, magnitude, n, threads); };
  const bool too_few = found.count < k && found.threshold > 1;
  if (too_few || (found.count > plan.capacity && reaching(found.threshold + 1) >= k)) {  // the sample misled
    found.threshold = find_threshold<T>(k, plan.capacity, reaching);
    found.count = collect(p, p, found.threshold, n, StateWriter<T>(nullptr, nullptr), plan, workspace, threads);
  }
  if (found.count >= k && found.count <= plan.capacity) {
    std::memcpy(workspace.scratch, workspace.candidates, found.count * sizeof(TopkElement<T>));
    send_candidates(workspace, n, select(workspace.scratch, found.count, k), writer);
  } else if (found.count < k) {
    send_with_ties<T>(p, n, 0, k - found.count, writer);  // all elements that are not zero, and some zeros
  } else {
    send_with_ties<T>(p, n, found.threshold, k - reaching(found.threshold + 1), writer);
  }
}

}  // namespace
}  // namespace gluon_gc
