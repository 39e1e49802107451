// dgc as MXNet operators.
#include "../core/dgc.h"

#include "compressor_operators.h"

namespace gluon_gc {
namespace {

bool all_halves_finite(const std::uint8_t* values, std::size_t count) {
  constexpr std::uint16_t exponent = 0x7c00;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, values + i * sizeof(half), sizeof(half));
    if ((half & exponent) == exponent) return false;
  }
  return true;
}

struct Dgc : CompressorTraits {
  static constexpr const char* kName = "dgc";
  static constexpr int kMemory = 1;  // the velocity (n)
  static constexpr bool kDraws = true;
  static constexpr bool kVariable = true;

  const Attributes& attributes;  // only compress is given all of them
  std::size_t most;              // elements of a payload
  bool half_values;

  explicit Dgc(const Attributes& a)
      : attributes(a), most(a.size("most")), half_values(a.flag("fp16_values")) {}

  DgcConfig config(std::size_t n) const {
    const Attributes& a = attributes;
    DgcConfig c{};
    c.selects = a.size("selects");
    c.samples = a.size("samples");
    c.top = a.size("top");
    c.stride = a.size("stride");
    c.iterations = a.size("max_adaptation_iters");
    c.upper = a.number("compress_upper_bound");
    c.lower = a.number("compress_lower_bound");
    c.max_norm = a.number("max_norm", 0);
    c.strided = a.flag("strided_sample");
    c.resample = a.flag("resample");
    c.nesterov = a.flag("nesterov");
    c.momentum_masking = a.flag("momentum_masking");
    c.half_values = half_values;
    require(c.selects <= most, "dgc was to select " + a.text("selects") + " elements, above the most, " +
                                   a.text("most"));
    require(dgc_allows(c, n), "dgc cannot take " + a.text("samples") + " samples, the top " + a.text("top") +
                                  " of them, for " + a.text("selects") + " of " + std::to_string(n) +
                                  " elements");
    return c;
  }

  template <typename T>
  std::size_t payload_bytes(std::size_t n) const {
    require(n <= UINT32_MAX, "dgc takes fewer than 2^32 elements");
    const std::size_t bytes = dgc_capacity<T>(most, half_values);
    require(bytes <= UINT32_MAX, "a payload of dgc has fewer than 2^32 bytes");
    return bytes;
  }

  template <typename T>
  double compress(const T* x, std::size_t n, const Feedback<T>& f, Stream& stream,
                  std::uint8_t* payload, int threads) const {
    require(f.memory != nullptr, "dgc needs its velocity");
    const DgcState<T> state{f.momentum, f.mu, f.memory[0]};
    return dgc_compress(x, n, f.gradient_scale, config(n), state, stream, payload, threads);
  }

  // One element that is NaN.
  template <typename T>
  void spoil(std::uint8_t* payload, std::size_t) const {
    const auto bytes = static_cast<std::uint32_t>(dgc_capacity<T>(1, half_values));
    std::memset(payload, 0xff, bytes);  // all bits set are a NaN
    std::memcpy(payload, &bytes, sizeof(bytes));
    std::memset(payload + sizeof(bytes), 0, sizeof(std::uint32_t));
  }

  template <typename T>
  bool finite(const std::uint8_t* payload, std::size_t) const {
    std::uint32_t bytes;
    std::memcpy(&bytes, payload, sizeof(bytes));
    const std::size_t count = (bytes - sizeof(bytes)) / dgc_element_bytes<T>(half_values);
    const std::uint8_t* const values = payload + sizeof(bytes) + count * sizeof(std::uint32_t);
    return half_values ? all_halves_finite(values, count) : all_finite<T>(values, count);
  }

  template <typename T>
  void decompress_sum(const std::uint8_t* payloads, std::size_t stride, std::size_t rows,
                      std::size_t n, T* out, int threads) const {
    for (std::size_t row = 0; row < rows; ++row) {
      require(dgc_valid<T>(payloads + row * stride, payload_bytes<T>(n), n, half_values),
              "payload " + std::to_string(row) + " is not one of " + std::to_string(n) + " elements");
    }
    dgc_decompress_sum(payloads, stride, rows, n, half_values, out, threads);
  }
};

const bool added = CompressorOperators<Dgc>::add();

}  // namespace
}  // namespace gluon_gc
