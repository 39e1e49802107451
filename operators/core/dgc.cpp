#include "core/dgc.h"

#include "core/dgc_compensate.h"
#include "core/dgc_threshold.h"
#include "core/indices.h"
#include "core/topk_send.h"

namespace gluon_gc {
namespace {

// The bits of the float16 nearest to x, ties to even, rounded once.
inline std::uint16_t half_of(float x) { return half_bits(x); }
inline std::uint16_t half_of(double x) {
  // A float whose last bit is set wherever it is not exact rounds to the same half as x.
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x) return half_bits(nearest);
  const bool away = __builtin_fabs(static_cast<double>(nearest)) > __builtin_fabs(x);
  return half_bits(bits_float((float_bits(nearest) - away) | 1));
}

// Writes the elements of a payload one after the other.
template <typename T>
struct DgcWriter {
  DgcWriter(void* payload, std::size_t count, bool half_values)
      : payload(static_cast<char*>(payload)),
        indices(this->payload + sizeof(std::uint32_t)),
        values(indices + count * sizeof(std::uint32_t)),
        half_values(half_values),
        left(count) {
    write(payload, static_cast<std::uint32_t>(dgc_capacity<T>(count, half_values)));
  }

  void add(TopkElement<T> element) {
    const Bits<T> bits = value_bits<T>(element);
    write(indices, index_of<T>(element));
    indices += sizeof(std::uint32_t);
    if (half_values) {
      write(values, half_of(read<T>(&bits)));
      values += sizeof(std::uint16_t);
    } else {
      write(values, bits);
      values += sizeof(bits);
    }
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
      : indices{static_cast<const char*>(payload) + sizeof(std::uint32_t),
                (read<std::uint32_t>(payload) - sizeof(std::uint32_t)) / dgc_element_bytes<T>(half_values)},
        values(indices.begin + indices.count * sizeof(std::uint32_t)),
        half_values(half_values) {}

  T value(std::size_t i) const {
    if (half_values) return half_value(read<std::uint16_t>(values + i * sizeof(std::uint16_t)));
    return read<T>(values + i * sizeof(T));
  }

  const Indices indices;
  const char* const values;
  const bool half_values;
};

}  // namespace

template <Isa isa, typename T>
T DgcKernels<isa, T>::compress(const T* gradient, std::size_t n, T gradient_scale, const DgcConfig& config,
                               const DgcState<T>& state, Stream& stream, const DgcWorkspace<T>& workspace,
                               void* payload, int threads) {
  if (n == 0) {
    write(payload, static_cast<std::uint32_t>(dgc_capacity<T>(0, config.half_values)));
    return 0;
  }
  const Corrected<T> v(nullptr, 0, {nullptr, 0, state.velocity, 0});
  const auto found =
      with_compensation(gradient, n, gradient_scale, config, state, threads, [&](const auto& compensate) {
        return find_candidates(compensate, v, n, state.velocity, workspace.plan, workspace.candidates, threads);
      });
  const Velocity<T> velocity(state.velocity, n, workspace, found, threads);
  const bool finite = velocity.finite();
  const Choice<T> choice = choose_elements(velocity, config, stream, workspace.sample);
  DgcWriter<T> writer(payload, choice.count, config.half_values);
  if (choice.largest) {
    send_largest(velocity.p, found, n, choice.count, workspace.plan, workspace.candidates, threads, writer);
  } else if (velocity.known(choice.threshold)) {
    send_candidates(velocity.workspace, n, least_element<T>(choice.threshold), writer);
  } else {
    send_with_ties<T>(velocity.p, n, choice.threshold, n, writer);
  }
  const DgcPayload<T> sent(payload, config.half_values);
  sent.indices.clear(state.velocity, n, threads);
  if (state.momentum && config.momentum_masking) sent.indices.clear(state.momentum, n, threads);
  return finite ? T{0} : static_cast<T>(__builtin_nan(""));
}

template <Isa isa, typename T>
bool DgcKernels<isa, T>::valid(const void* payload, std::size_t capacity, std::size_t n, bool half_values) {
  if (capacity < sizeof(std::uint32_t)) return false;
  const std::size_t bytes = read<std::uint32_t>(payload);
  if (bytes < sizeof(std::uint32_t) || bytes > capacity) return false;
  const DgcPayload<T> from(payload, half_values);
  return bytes == dgc_capacity<T>(from.indices.count, half_values) && from.indices.valid(n);
}

template <Isa isa, typename T>
void DgcKernels<isa, T>::decompress(const void* payload, std::size_t n, bool half_values, T* out, int threads) {
  fill_with_zeros(out, n, threads);
  add(payload, half_values, out);
}

template <Isa isa, typename T>
void DgcKernels<isa, T>::add(const void* payload, bool half_values, T* out) {
  const DgcPayload<T> from(payload, half_values);
  for (std::size_t i = 0; i < from.indices.count; ++i) {
    const std::uint32_t index = from.indices[i];
    out[index] = out[index] + from.value(i);
  }
}

template struct DgcKernels<this_isa, float>;
template struct DgcKernels<this_isa, double>;

}  // namespace gluon_gc
