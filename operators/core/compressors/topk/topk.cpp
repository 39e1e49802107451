// topk: the k elements with the largest magnitude, exactly. Among equal magnitudes the lowest indices win.
//
//   D(payload)[i] = p[i], or the float16 of p[i], if i is one of these k indices, else 0
//
// Aji and Heafield 2017 and Lin et al. 2018 (DGC) select elements by a sampled threshold. This selection is exact.
//
// sparse/format.h describes the payload. Its length depends on n and the options only. n must be below 2^32. A NaN
// counts as larger than infinity.
//
// Memory: the residual (n elements).
//
// The search: a small sample of p gives a threshold that slightly more than k elements reach. One sweep collects these
// candidates, and the k largest of them are sent.
//
// Bytes an element of float, one pass: reads 4; momentum and residual each read 4 and write 4 more. The sample and the
// selection take about 20 us for k = 1,000, which bounds the speed for short tensors. The sample misleads if too many
// elements are equal, or if the large elements are just where it looks. Then the search needs two more passes over p,
// at worst one for each bit of T.
#include "core/codec.h"
#include "core/compressors/sparse/config.h"
#include "core/compressors/sparse/payload.h"
#include "core/compressors/topk/send.h"

namespace gluon_gc {
namespace {

struct Topk : KeepsResidual {
  static constexpr Traits traits{};

  Topk(const Options& options, std::size_t n)
      : KeepsResidual{n},
        k(element_count(options.number("k"), n)),
        format(sparse_format(options, n, k, 0)),
        plan(topk_plan(n, k)) {
    if (n > UINT32_MAX) refuse("topk takes fewer than 2^32 elements, got %zu", n);
  }

  template <typename T>
  Needs needs() const {
    return {format.payload_bytes<T>(k), {n, 0}, TopkWorkspace<T>::bytes(plan, n), 0};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    const FeedbackState<T> state = call.feedback();
    const TopkWorkspace<T> workspace(call.workspace, plan);
    const Corrected<T> p(call.gradient, call.gradient_scale, state);
    const StoredResidual<T> residual{state.earlier_residual};
    const StateWriter<T> writer_of_residual(state.earlier_residual, state.residual);
    const auto found =
        with_correction(call.gradient, call.gradient_scale, state, residual, [&](const auto& correct) {
          return find_candidates(correct, p, n, writer_of_residual, plan, workspace, call.threads);
        });
    SparseWriter<T> writer(format, call.payload, k);
    send_largest(p, found, n, k, plan, workspace, call.threads, writer);
    writer.finish();
    const SparsePayload<T> sent(format, call.payload, k);
    if (state.residual) sent.clear(state.residual, n, format.half_values, call.threads);
    return sent.finite();
  }

  // Nothing to do: a NaN or an infinity is among the largest elements, so the payload has it.
  template <typename T>
  void spoil(std::uint8_t*) const {}

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    return SparsePayload<T>(format, payload, k).finite();
  }

  template <typename T>
  bool valid(const std::uint8_t* payload, std::size_t capacity) const {
    return capacity >= format.payload_bytes<T>(k) && SparsePayload<T>(format, payload, k).indices.valid(n);
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    decode_sparse(call, n, [&](const std::uint8_t* payload) { return SparsePayload<T>(format, payload, k); });
  }

  std::size_t k;
  SparseFormat format;
  TopkPlan plan;
};

}  // namespace

GLUON_GC_COMPRESSOR(topk, Topk)

}  // namespace gluon_gc
