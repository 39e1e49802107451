// dgc: Deep Gradient Compression (Lin et al. 2018). Elements accumulate locally until they are among the largest.
//
// With momentum m and velocity v:
//
//   g = gradient * gradient_scale, clipped to an l2 norm of max_norm
//   m = mu (m + g),  v = v + m + g     with nesterov
//   m = mu m + g,    v = v + m         without nesterov
//   v = v + g                          without momentum
//
// The elements of v that reach a threshold are sent (config.h). v becomes 0 there, and with momentum_masking m too.
//
// If values are sent as float16, v keeps what they lose.
//
// Payload, little-endian:
//   [its own length in bytes: uint32] [a payload of sparse/format.h]
// The rest of the payload's memory is undefined. n must be below 2^32.
//
// Memory: the velocity (n elements).
//
// Bytes an element of float, one pass: reads the gradient, reads and writes the velocity, 12 bytes. Momentum adds 8;
// clipping reads the gradient once more, 4. Like topk, this pass collects candidates above a lower threshold, from a
// small sample of its own. The candidates that are in the sample of dgc give the threshold, and the candidates are
// counted when it is adapted. v is read again only if a threshold falls below that of the candidates, or if there are
// too many candidates.
//
// With max_norm, the l2 norm of doubles overflows if an element is above 1e154. Then the payload is not finite.
#include "core/codec.h"
#include "core/compressors/dgc/compensate.h"
#include "core/compressors/dgc/threshold.h"
#include "core/compressors/sparse/payload.h"
#include "core/compressors/topk/send.h"

namespace gluon_gc {
namespace {

struct Dgc : KeepsResidual {
  static constexpr Traits traits{true, false, false, true, true};

  Dgc(const Options& options, std::size_t n)
      : KeepsResidual{n}, config(options, n), plan(topk_plan(n, config.least_room(n))) {
    if (n > UINT32_MAX) refuse("dgc takes fewer than 2^32 elements, got %zu", n);
    if (config.format.payload_bytes<double>(config.most) > UINT32_MAX) {
      refuse("a payload of dgc has fewer than 2^32 bytes, so that it cannot have %zu elements", config.most);
    }
  }

  template <typename T>
  Needs needs() const {
    return {config.format.payload_bytes<T>(config.most), {n, 0}, DgcWorkspace<T>::bytes(plan, config, n),
            config.draws(n)};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    if (n == 0) {
      writer_of<T>(call.payload, 0).finish();
      return true;
    }
    const DgcWorkspace<T> workspace(call.workspace, plan, config, n);
    T* const accumulated = call.memory[0];
    const Corrected<T> v(nullptr, 0, {nullptr, nullptr, 0, nullptr, accumulated, 0});
    const auto found = with_compensation(call, n, config, workspace.sums, [&](const auto& compensate) {
      const StateWriter<T> writer(call.earlier_memory[0], accumulated);
      return find_candidates(compensate, v, n, writer, plan, workspace.candidates, call.threads);
    });
    const Velocity<T> velocity(accumulated, n, workspace, found, call.threads);
    const bool is_finite = velocity.finite();
    const Choice<T> choice = choose_elements(velocity, config, call.stream, workspace.sample);
    SparseWriter<T> writer = writer_of<T>(call.payload, choice.count);
    if (choice.largest) {
      send_largest(velocity.p, found, n, choice.count, plan, workspace.candidates, call.threads, writer);
    } else if (velocity.known(choice.threshold)) {
      send_candidates(velocity.workspace, n, least_element<T>(choice.threshold), writer);
    } else {
      send_with_ties<T>(velocity.p, n, choice.threshold, n, writer);
    }
    writer.finish();
    const SparsePayload<T> sent = read_from<T>(call.payload);
    sent.clear(accumulated, n, config.format.half_values, call.threads);
    if (call.momentum && config.momentum_masking) sent.clear(call.momentum, n, false, call.threads);
    return is_finite;
  }

  // Replaces the payload by one element, NaN.
  template <typename T>
  void spoil(std::uint8_t* payload) const {
    SparseWriter<T> writer = writer_of<T>(payload, 1);
    writer.add(element(not_a_number<T>(), 0));
    writer.finish();
  }

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    return read_from<T>(payload).finite();
  }

  template <typename T>
  bool valid(const std::uint8_t* payload, std::size_t capacity) const {
    if (capacity < sizeof(std::uint32_t)) return false;
    const std::size_t bytes = read<std::uint32_t>(payload);
    if (bytes < config.format.payload_bytes<T>(0) || bytes > capacity) return false;
    const std::size_t count = config.format.count_of<T>(bytes);
    return bytes == config.format.payload_bytes<T>(count) && read_from<T>(payload).indices.valid(n);
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    decode_sparse(call, n, [this](const std::uint8_t* payload) { return read_from<T>(payload); });
  }

  // Writes the length of a payload of `count` elements. Returns a writer of these elements.
  template <typename T>
  SparseWriter<T> writer_of(std::uint8_t* payload, std::size_t count) const {
    write(payload, static_cast<std::uint32_t>(config.format.payload_bytes<T>(count)));
    return {config.format, payload, count};
  }

  // A payload. Its length must be one of payload_bytes.
  template <typename T>
  SparsePayload<T> read_from(const std::uint8_t* payload) const {
    return {config.format, payload, config.format.count_of<T>(read<std::uint32_t>(payload))};
  }

  DgcConfig config;
  TopkPlan plan;
};

}  // namespace

GLUON_GC_COMPRESSOR(dgc, Dgc)

}  // namespace gluon_gc
