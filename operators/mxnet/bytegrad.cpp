// bytegrad as MXNet operators.
#include "../core/bytegrad.h"

#include "compressor_operators.h"

namespace gluon_gc {
namespace {

struct Bytegrad : CompressorTraits {
  static constexpr const char* kName = "bytegrad";
  static constexpr int kMemory = 1;  // the residual (n)
  static constexpr bool kVariable = true;

  explicit Bytegrad(const Attributes&) {}

  template <typename T>
  std::size_t payload_bytes(std::size_t n) const {
    require(bytegrad_allows<T>(n), "bytegrad takes no " + std::to_string(n) + " elements");
    return bytegrad_capacity<T>(n);
  }

  template <typename T>
  double compress(const T* x, std::size_t n, const Feedback<T>& f, Stream&,
                  std::uint8_t* payload, int threads) const {
    return bytegrad_compress(x, n, f.gradient_scale, f.state(), payload, threads);
  }

  template <typename T>
  void spoil(std::uint8_t*, std::size_t) const {}  // the least and the largest are NaNs then

  template <typename T>
  bool finite(const std::uint8_t* payload, std::size_t) const {
    return all_finite<T>(payload + sizeof(std::uint32_t), 2);
  }

  template <typename T>
  void decompress_sum(const std::uint8_t* payloads, std::size_t stride, std::size_t rows,
                      std::size_t n, T* out, int threads) const {
    for (std::size_t row = 0; row < rows; ++row) {
      require(bytegrad_valid<T>(payloads + row * stride, payload_bytes<T>(n), n),
              "payload " + std::to_string(row) + " is not one of " + std::to_string(n) +
                  " elements");
    }
    bytegrad_decompress_sum(payloads, stride, rows, n, out, threads);
  }
};

const bool added = CompressorOperators<Bytegrad>::add();

}  // namespace
}  // namespace gluon_gc
