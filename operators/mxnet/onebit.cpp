// onebit as MXNet operators.
#include "../core/onebit.h"

#include "compressor_operators.h"

namespace gluon_gc {
namespace {

struct Onebit : CompressorTraits {
  static constexpr const char* kName = "onebit";
  static constexpr int kMemory = 2;  // the last corrected gradient (n), its decoded scale (1)

  bool scaling;

  explicit Onebit(const Attributes& attributes) : scaling(attributes.flag("scaling")) {}

  template <typename T>
  std::size_t payload_bytes(std::size_t n) const {
    return onebit_payload_bytes<T>(n);
  }

  static std::size_t scale_at(std::size_t n) { return onebit_words(n) * sizeof(std::uint32_t); }

  template <typename T>
  double compress(const T* x, std::size_t n, const Feedback<T>& f, Stream&,
                  std::uint8_t* payload, int threads) const {
    OnebitState<T> state{};
    state.momentum = f.momentum;
    state.mu = f.mu;
    state.ratio = f.ratio;
    if (f.memory != nullptr) {
      state.corrected = f.memory[0];
      state.scale = f.memory[1];
    }
    return onebit_compress(x, n, f.gradient_scale, scaling, state, payload, threads);
  }

  template <typename T>
  void spoil(std::uint8_t* payload, std::size_t n) const {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    std::memcpy(payload + scale_at(n), &nan, sizeof(T));
  }

  template <typename T>
  bool finite(const std::uint8_t* payload, std::size_t n) const {
    return all_finite<T>(payload + scale_at(n), 1);
  }

  template <typename T>
  void decompress_sum(const std::uint8_t* payloads, std::size_t stride, std::size_t count,
                      std::size_t n, T* out, int threads) const {
    onebit_decompress_sum(payloads, stride, count, n, out, threads);
  }

  template <typename T>
  void residual(T* const* memory, std::size_t n, T* out) const {
    onebit_residual(memory[0], *memory[1], n, out);
  }
};

const bool added = CompressorOperators<Onebit>::add();

}  // namespace
}  // namespace gluon_gc
