// dithering as MXNet operators.
#include "../core/dithering.h"

#include "compressor_operators.h"

namespace gluon_gc {
namespace {

struct Dithering : CompressorTraits {
  static constexpr const char* kName = "dithering";
  static constexpr int kMemory = 1;  // the residual (n)
  static constexpr bool kDraws = true;
  static constexpr bool kVariable = true;

  DitheringConfig config;

  explicit Dithering(const Attributes& a)
      : config{static_cast<std::uint32_t>(a.size("k")), a.text("partition") == "natural",
               a.text("normalize") == "l2", false} {
    require(dithering_allows(a.size("k"), config.natural),
            "dithering takes no " + a.text("k") + " levels");
  }

  template <typename T>
  std::size_t payload_bytes(std::size_t n) const {
    require(n < 1u << 30, "dithering takes fewer than 2^30 elements");
    return dithering_capacity<T>(n, config.levels);
  }

  template <typename T>
  double compress(const T* x, std::size_t n, const Feedback<T>& f, Stream& stream,
                  std::uint8_t* payload, int threads) const {
    return dithering_compress(x, n, f.gradient_scale, config, f.state(), stream, payload, threads);
  }

  template <typename T>
  void spoil(std::uint8_t* payload, std::size_t) const {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    std::memcpy(payload + norm_at, &nan, sizeof(T));
  }

  template <typename T>
  bool finite(const std::uint8_t* payload, std::size_t) const {
    return all_finite<T>(payload + norm_at, 1);
  }

  template <typename T>
  void decompress_sum(const std::uint8_t* payloads, std::size_t stride, std::size_t rows,
                      std::size_t n, T* out, int threads) const {
    for (std::size_t row = 0; row < rows; ++row) {
      require(dithering_valid<T>(payloads + row * stride, payload_bytes<T>(n), n, config),
              "payload " + std::to_string(row) + " is not a code of " + std::to_string(n) +
                  " elements");
    }
    dithering_decompress_sum(payloads, stride, rows, n, config, out, threads);
  }

  static constexpr std::size_t norm_at = 2 * sizeof(std::uint32_t);
};

const bool added = CompressorOperators<Dithering>::add();

}  // namespace
}  // namespace gluon_gc
