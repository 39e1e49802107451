#include "core/topk.h"

#include "core/indices.h"
#include "core/topk_send.h"

namespace gluon_gc {
namespace {

// Writes the elements of a payload one after the other.
template <typename T>
struct Writer {
  Writer(void* payload, std::size_t k)
      : indices(static_cast<char*>(payload)), values(indices + k * sizeof(std::uint32_t)), left(k) {}

  void add(TopkElement<T> element) {
    const Bits<T> bits = value_bits<T>(element), magnitude = magnitude_bits<T>(bits);
    write(indices, index_of<T>(element));
    write(values, bits);
    indices += sizeof(std::uint32_t);
    values += sizeof(bits);
    largest = magnitude > largest ? magnitude : largest;
    --left;
  }

  char* indices;
  char* values;
  std::size_t left;
  Bits<T> largest = 0;
};

}  // namespace

template <Isa isa, typename T>
T TopkKernels<isa, T>::compress(const T* gradient, std::size_t n, std::size_t k, T gradient_scale,
                                const FeedbackState<T>& state, const TopkPlan& plan,
                                const TopkWorkspace<T>& workspace, void* payload, int threads) {
  const Corrected<T> p(gradient, gradient_scale, state);
  const StoredResidual<T> residual{state.residual};
  const auto found = with_correction(gradient, gradient_scale, state, residual, [&](const auto& correct) {
    return find_candidates(correct, p, n, state.residual, plan, workspace, threads);
  });
  Writer<T> writer(payload, k);
  send_largest(p, found, n, k, plan, workspace, threads, writer);
  if (state.residual) Indices{static_cast<const char*>(payload), k}.clear(state.residual, n, threads);
  return read<T>(&writer.largest);
}

template <Isa isa, typename T>
bool TopkKernels<isa, T>::valid(const void* payload, std::size_t n, std::size_t k) {
  return Indices{static_cast<const char*>(payload), k}.valid(n);
}

template <Isa isa, typename T>
void TopkKernels<isa, T>::decompress(const void* payload, std::size_t n, std::size_t k, T* out, int threads) {
  fill_with_zeros(out, n, threads);
  add(payload, k, out);
}

template <Isa isa, typename T>
void TopkKernels<isa, T>::add(const void* payload, std::size_t k, T* out) {
  const Indices indices{static_cast<const char*>(payload), k};
  const char* const values = indices.begin + k * sizeof(std::uint32_t);
  for (std::size_t i = 0; i < k; ++i) {
    const std::uint32_t index = indices[i];
    out[index] = out[index] + read<T>(values + i * sizeof(T));
  }
}

template struct TopkKernels<this_isa, float>;
template struct TopkKernels<this_isa, double>;

}  // namespace gluon_gc
