// dgc, Deep Gradient Compression: gradients are accumulated, with momentum, until they are among the largest.
//
// g = gradient * gradient_scale, made shorter if it is longer than max_norm; momentum m and velocity v become
//   nesterov: m = mu (m + g), v = v + m + g;   else: m = mu m + g, v = v + m;   without momentum: v = v + g;
// then the elements of v that reach a threshold are sent, and v is set to 0 there, as is m with
// momentum_masking (see dgc_config.h).
//
// A payload is little-endian: its length in bytes, itself included, as uint32; the indices of its elements,
// uint32, ascending; then their values, in T or float16, where what is too large is infinite. What is left of
// the capacity has no meaning. n must be below 2^32.
//
// Memory: the velocity (n). Reads gradient, reads and writes velocity and momentum, one pass: 12 bytes an
// element of float, 8 more for momentum; clipping reads gradient once more. Candidates are collected in that
// pass, by a lower threshold from a small sample of its own, as topk does; the elements of the sample that are
// candidates give the threshold, and are counted as it is adapted. v is looked at again only if a threshold
// turns out to be below theirs, or there are too many of them. The norm of doubles overflows where an element
// is above 1e154: with max_norm they are not finite then.
#include "core/codec.h"
#include "core/compressors/dgc_compensate.h"
#include "core/compressors/dgc_threshold.h"
#include "core/compressors/indices.h"
#include "core/compressors/topk_send.h"
#include "core/half_bits.h"

namespace gluon_gc {
namespace {

// Writes the elements of a payload one after the other.
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

// Where things are in a payload, whose length is in its bounds.
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

  // One element that is NaN.
  template <typename T>
  void spoil(std::uint8_t* payload) const {
    const std::size_t bytes = dgc_payload_bytes<T>(1, config.half_values);
    std::memset(payload, 0xff, bytes);  // all bits set are a NaN
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
