// dgc: Deep Gradient Compression (Lin et al. 2018). Elements accumulate locally until they are among the largest.
//
// With momentum m and velocity v:
//
//   g = gradient * gradient_scale, clipped to an l2 norm of max_norm
//   m = mu (m + g),  v = v + m + g     with nesterov
//   m = mu m + g,    v = v + m         without nesterov
//   v = v + g                          without momentum
//
// The elements of v that reach a threshold are sent (dgc_config.h). v becomes 0 there, and with momentum_masking m too.
//
// Payload, little-endian:
//   [its own length in bytes: uint32] [indices, ascending: uint32 each] [values: T or float16 each]
// Values that are too large for float16 become infinite. The rest of the payload's memory is undefined. n must be below
// 2^32.
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
#include "core/compressors/dgc_compensate.h"
#include "core/compressors/dgc_threshold.h"
#include "core/compressors/indices.h"
#include "core/compressors/topk_send.h"
#include "core/half_bits.h"

namespace gluon_gc {
namespace {

// Appends elements to a payload, in ascending order of their indices.
template <typename T>
struct DgcWriter {
  DgcWriter(void* payload, std::size_t count, bool half_values)
      : payload(static_cast<char*>(payload)),
        indices(this->payload + dgc_indices_at),
        values(indices + indices_bytes(count)),
        half_values(half_values),
        left(count) {
    write(payload, static_cast<std::uint32_t>(dgc_payload_bytes<T>(count, half_values)));
  }

  void add(TopkElement<T> element) {
    const Bits<T> bits = value_bits<T>(element);
    write(indices, index_of<T>(element));
    indices += sizeof(std::uint32_t);
    if (half_values) {
      const T x = from_bits(bits);
      write(values, half_bits(x, static_cast<float>(x)));
    } else {
      write(values, bits);
    }
    values += dgc_value_bytes<T>(half_values);
    --left;
  }

  char* const payload;
  char* indices;
  char* values;
  const bool half_values;
  std::size_t left;
};

// The parts of a payload. Its length must be within its bounds.
template <typename T>
struct DgcPayload {
  DgcPayload(const void* payload, bool half_values)
      : indices{static_cast<const char*>(payload) + dgc_indices_at,
                dgc_count<T>(read<std::uint32_t>(payload), half_values)},
        values(indices.begin + indices_bytes(indices.count)),
        half_values(half_values) {}

  T value(std::size_t i) const {
    if (half_values) return half_value(read<std::uint16_t>(values + i * sizeof(std::uint16_t)));
    return read<T>(values + i * sizeof(T));
  }

  const Indices indices;
  const char* const values;
  const bool half_values;
};

bool all_halves_finite(const char* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (!half_is_finite(read<std::uint16_t>(values + i * sizeof(std::uint16_t)))) return false;
  }
  return true;
}

struct Dgc : KeepsResidual {
  static constexpr Traits traits{true, false, false, true, true};

  Dgc(const Options& options, std::size_t n)
      : KeepsResidual{n}, config(options, n), plan(topk_plan(n, config.least_room(n))) {
    if (n > UINT32_MAX) refuse("dgc takes fewer than 2^32 elements, got %zu", n);
    if (dgc_payload_bytes<double>(config.most, false) > UINT32_MAX) {
      refuse("a payload of dgc has fewer than 2^32 bytes, so that it cannot have %zu elements", config.most);
    }
  }

  template <typename T>
  Needs needs() const {
    return {dgc_payload_bytes<T>(config.most, config.half_values), {n, 0}, DgcWorkspace<T>::bytes(plan, config, n),
            config.draws(n)};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    write(call.payload, static_cast<std::uint32_t>(dgc_payload_bytes<T>(0, config.half_values)));
    if (n == 0) return true;
    const DgcWorkspace<T> workspace(call.workspace, plan, config, n);
    T* const accumulated = call.memory[0];
    const Corrected<T> v(nullptr, 0, {nullptr, 0, accumulated, 0});
    const auto found = with_compensation(call, n, config, workspace.sums, [&](const auto& compensate) {
      return find_candidates(compensate, v, n, accumulated, plan, workspace.candidates, call.threads);
    });
    const Velocity<T> velocity(accumulated, n, workspace, found, call.threads);
    const bool is_finite = velocity.finite();
    const Choice<T> choice = choose_elements(velocity, config, call.stream, workspace.sample);
    DgcWriter<T> writer(call.payload, choice.count, config.half_values);
    if (choice.largest) {
      send_largest(velocity.p, found, n, choice.count, plan, workspace.candidates, call.threads, writer);
    } else if (velocity.known(choice.threshold)) {
      send_candidates(velocity.workspace, n, least_element<T>(choice.threshold), writer);
    } else {
      send_with_ties<T>(velocity.p, n, choice.threshold, n, writer);
    }
    const DgcPayload<T> sent(call.payload, config.half_values);
    sent.indices.clear(accumulated, n, call.threads);
    if (call.momentum && config.momentum_masking) sent.indices.clear(call.momentum, n, call.threads);
    return is_finite;
  }

  // Replaces the payload by one element, NaN.
  template <typename T>
  void spoil(std::uint8_t* payload) const {
    const std::size_t bytes = dgc_payload_bytes<T>(1, config.half_values);
    std::memset(payload, 0xff, bytes);  // all bits set: NaN
    write(payload, static_cast<std::uint32_t>(bytes));
    write(payload + dgc_indices_at, std::uint32_t{0});
  }

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    const DgcPayload<T> from(payload, config.half_values);
    return config.half_values ? all_halves_finite(from.values, from.indices.count)
                              : all_finite<T>(from.values, from.indices.count);
  }

  template <typename T>
  bool valid(const std::uint8_t* payload, std::size_t capacity) const {
    if (capacity < sizeof(std::uint32_t)) return false;
    const std::size_t bytes = read<std::uint32_t>(payload);
    if (bytes < sizeof(std::uint32_t) || bytes > capacity) return false;
    const DgcPayload<T> from(payload, config.half_values);
    return bytes == dgc_payload_bytes<T>(from.indices.count, config.half_values) && from.indices.valid(n);
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    if (!call.add) fill_with_zeros(call.out, n, call.threads);
    for (std::size_t k = 0; k < call.count; ++k) {
      const DgcPayload<T> from(call.payload(k), config.half_values);
      for (std::size_t i = 0; i < from.indices.count; ++i) {
        const std::uint32_t index = from.indices[i];
        call.out[index] = call.out[index] + from.value(i);
      }
    }
  }

  DgcConfig config;
  TopkPlan plan;
};

}  // namespace

GLUON_GC_COMPRESSOR(dgc, Dgc)

}  // namespace gluon_gc
