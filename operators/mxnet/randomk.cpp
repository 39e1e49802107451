// randomk as MXNet operators.
#include "../core/randomk.h"

#include <algorithm>

#include "compressor_operators.h"
#include "count.h"

namespace gluon_gc {
namespace {

struct Randomk : CompressorTraits {
  static constexpr const char* kName = "randomk";
  static constexpr int kMemory = 1;  // the residual (n)
  static constexpr bool kDraws = true;
  static constexpr bool kSummable = true;

  double k;

  explicit Randomk(const Attributes& attributes) : k(attributes.number("k")) {
    require(k > 0, "k must be > 0, got " + attributes.text("k"));
  }

  template <typename T>
  std::size_t payload_bytes(std::size_t n) const {
    return element_count(k, n) * sizeof(T);
  }

  template <typename T>
  double compress(const T* x, std::size_t n, const Feedback<T>& f, Stream& stream,
                  std::uint8_t* payload, int threads) const {
    return randomk_compress(x, n, element_count(k, n), f.gradient_scale, f.state(), stream, payload, threads);
  }

  template <typename T>
  void spoil(std::uint8_t* payload, std::size_t n) const {
    auto* values = reinterpret_cast<T*>(payload);
    std::fill_n(values, element_count(k, n), std::numeric_limits<T>::quiet_NaN());
  }

  template <typename T>
  bool finite(const std::uint8_t* payload, std::size_t n) const {
    return all_finite<T>(payload, element_count(k, n));
  }

  template <typename T>
  void decompress(const std::uint8_t* payload, std::size_t n, const Stream& start, T* out,
                  int threads) const {
    randomk_decompress(payload, n, element_count(k, n), start, out, threads);
  }
};

const bool added = CompressorOperators<Randomk>::add();

}  // namespace
}  // namespace gluon_gc
