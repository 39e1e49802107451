// topk as MXNet operators.
#include "../core/topk.h"

#include "compressor_operators.h"
#include "count.h"

namespace gluon_gc {
namespace {

struct Topk : CompressorTraits {
  static constexpr const char* kName = "topk";
  static constexpr int kMemory = 1;  // the residual (n)

  double k;

  explicit Topk(const Attributes& attributes) : k(attributes.number("k")) {
    require(k > 0, "k must be > 0, got " + attributes.text("k"));
  }

  std::size_t count(std::size_t n) const { return element_count(k, n); }

  template <typename T>
  std::size_t payload_bytes(std::size_t n) const {
    require(n <= UINT32_MAX, "topk takes fewer than 2^32 elements");
    return topk_payload_bytes<T>(count(n));
  }

  template <typename T>
  double compress(const T* x, std::size_t n, const Feedback<T>& f, Stream&,
                  std::uint8_t* payload, int threads) const {
    return topk_compress(x, n, count(n), f.gradient_scale, f.state(), payload, threads);
  }

  template <typename T>
  void spoil(std::uint8_t*, std::size_t) const {}  // what is not finite is largest, and sent

  template <typename T>
  bool finite(const std::uint8_t* payload, std::size_t n) const {
    return all_finite<T>(payload + count(n) * sizeof(std::uint32_t), count(n));
  }

  template <typename T>
  void decompress_sum(const std::uint8_t* payloads, std::size_t stride, std::size_t rows,
                      std::size_t n, T* out, int threads) const {
    for (std::size_t row = 0; row < rows; ++row) {
      require(topk_valid<T>(payloads + row * stride, n, count(n)),
              "the indices of payload " + std::to_string(row) + " do not ascend below " +
                  std::to_string(n));
    }
    topk_decompress_sum(payloads, stride, rows, n, count(n), out, threads);
  }
};

const bool added = CompressorOperators<Topk>::add();

}  // namespace
}  // namespace gluon_gc
