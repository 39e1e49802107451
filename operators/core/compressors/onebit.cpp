// onebit: the sign of each element and one scale.
//
//   D(payload)[i] = -scale if p[i] < 0, else +scale;   scale = sum |p| / n with the option scaling, else 1
//
// With scaling and error feedback this is EF-SignSGD (Karimireddy et al. 2019), and with momentum on the workers and
// feedback on the aggregator too, dist-EF-SGDM (Zheng et al. 2019). Without them it is signSGD (Bernstein et al. 2018).
// Error feedback for one bit an element is from 1-bit SGD (Seide et al. 2014).
//
// Payload, little-endian:
//   [signs: ceil(n / 32) words, uint32] [scale: T]
// Bit i % 32 of word i / 32 is set if element i is negative. It is clear for 0, -0.0 and NaN. Unused bits are clear.
// The scale is 0 if n is 0.
//
// Memory: p of the last call (n elements) and its scale (1 element). The residual e = p - D(payload) is computed when
// the next call reads it, so that one sweep is enough. restore stores p = e and scale = 0.
//
// Bytes an element of float, one pass: compress reads 4 and writes 1/8. Error feedback and momentum each read 4 and
// write 4 more. decompress reads 1/8 for each payload and writes 4.
#include "core/bytes.h"
#include "core/codec.h"
#include "core/compressors/onebit_format.h"
#include "core/correction.h"
#include "core/parallel.h"
#include "core/sums.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

// The signs of the sixteen elements from i.
std::uint32_t read_signs(const void* payload, std::size_t i) {
  return read<std::uint16_t>(static_cast<const char*>(payload) + i / 8);
}

void write_word(void* words, std::size_t index, std::uint32_t word) {
  write(static_cast<char*>(words) + index * sizeof(word), word);
}

template <typename T>
T read_scale(const void* payload, std::size_t n) {
  return read<T>(static_cast<const char*>(payload) + scale_at(n));
}

template <typename T>
void write_scale(void* payload, std::size_t n, T scale) {
  write(static_cast<char*>(payload) + scale_at(n), scale);
}

// Decodes sixteen signs to +scale or -scale.
template <typename T>
struct Decoder {
  explicit Decoder(T scale) : plus(broadcast(scale)), minus(broadcast(-scale)) {}
  Vec<T> operator()(std::uint32_t signs) const { return choose(signs, minus, plus); }
  Vec<T> plus, minus;
};

// e = p - D(payload). The sign bit of p is the sign in the payload, because p with feedback is never -0.0.
template <typename T>
Vec<T> residual_of(const Vec<T>& p, const Vec<T>& scale) {
  return p - with_sign_of(p, scale);
}

// The residual, computed from p and the scale of the last call.
template <typename T>
struct LazyResidual {
  explicit operator bool() const { return corrected != nullptr; }
  const T* address(std::size_t i) const { return corrected + i; }

  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    return residual_of(load(corrected + i, present), broadcast(scale));
  }

  const T* corrected;
  T scale;
};

// Writes the signs and, with feedback, stores p. Returns the sum of |p|, which is not finite if an element is not.
template <typename T, typename Correct, typename Prepare>
double compress_words(const Correct& correct, std::size_t n, const StateWriter<T>& corrected, void* payload,
                      double* sums, int threads, Prepare prepare) {
  const auto part = [=](std::size_t i, auto present) {
    const Vec<T> p = correct(i, present);
    if constexpr (Correct::has_residual) corrected(p, i, present);
    return keep(p, present);
  };
  return sum_over<Magnitudes<T>>(n, sums, threads, [=](auto& sum, std::size_t i, auto present) {
    const Vec<T> low = part(i, present.part(0));
    const Vec<T> high = part(i + lanes, present.part(1));
    sum.add(low, high);
    write_word(payload, i / word_elements, negative(low) | negative(high) << lanes);
  }, prepare);
}

// Decodes the elements in [begin, end) of `count` payloads from number k on, and sums them. `begin` is a multiple of
// word_elements.
template <bool add, std::size_t count, typename T>
void decode(const Decoding<T>& call, std::size_t k, std::size_t n, std::size_t begin, std::size_t end) {
  const std::uint8_t* payloads[count];
  T scales[count];
  for (std::size_t j = 0; j < count; ++j) {
    payloads[j] = call.payload(k + j);
    scales[j] = read_scale<T>(payloads[j], n);
  }
  T* const out = call.out;
  const auto part = [=](std::size_t i, auto present) {
    const auto decoded = [=](std::size_t j) { return Decoder<T>(scales[j])(read_signs(payloads[j], i)); };
    Vec<T> sum = decoded(0);
    if constexpr (add) sum = load(out + i, present) + sum;
    for (std::size_t j = 1; j < count; ++j) sum = sum + decoded(j);
    store(sum, out + i, present);
  };
  sweep<word_elements>(begin, end, [=](std::size_t i, auto present) {
    part(i, present.part(0));
    part(i + lanes, present.part(1));
  });
}

struct Onebit {
  static constexpr Traits traits{};

  Onebit(const Options& options, std::size_t n) : n(n), scaling(options.flag("scaling")) {}

  template <typename T>
  Needs needs() const {
    return {scale_at(n) + sizeof(T), {n, 1}, sums_bytes(n), 0};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    return compress(call, [](std::size_t, std::size_t) {});
  }

  // Decodes the payloads to a tile while it is in the first-level cache.
  template <typename T>
  bool aggregate(const Decoding<T>& payloads, const Encoding<T>& call) const {
    return compress(call, [=](std::size_t begin, std::size_t end) { decompress(payloads, begin, end); });
  }

  // Calls prepare(begin, end) before it reads these elements of the gradient.
  template <typename T, typename Prepare>
  bool compress(const Encoding<T>& call, Prepare prepare) const {
    T* const corrected = call.memory[0];
    const LazyResidual<T> residual{call.earlier_memory[0], corrected ? *call.earlier_memory[1] : T{0}};
    const StateWriter<T> writer(call.earlier_memory[0], corrected);
    const double sum = with_correction(call.gradient, call.gradient_scale, call.feedback(), residual,
                                       [&](const auto& correct) {
      return compress_words(correct, n, writer, call.payload, static_cast<double*>(call.workspace), call.threads,
                            prepare);
    });
    const T scale = onebit_scale<T>(sum, n, scaling);
    write_scale(call.payload, n, scale);
    if (corrected) *call.memory[1] = scale;
    return is_finite(sum);
  }

  template <typename T>
  void spoil(std::uint8_t* payload) const {
    write_scale(payload, n, not_a_number<T>());
  }

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    return is_finite(read_scale<T>(payload, n));
  }

  template <typename T>
  bool valid(const std::uint8_t*, std::size_t capacity) const {
    return capacity >= needs<T>().payload_bytes;
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    constexpr std::size_t tile = 4096;  // elements, for the first-level cache
    Blocks<tile>(n).run(call.threads, [=](std::size_t, std::size_t begin, std::size_t end) {
      for (; begin < end; begin += tile) decompress(call, begin, end - begin < tile ? end : begin + tile);
    });
  }

  // The same for the elements in [begin, end). Not inlined: see sum_over.
  template <typename T>
  [[gnu::noinline]] void decompress(const Decoding<T>& call, std::size_t begin, std::size_t end) const {
    if (call.count == 0 && !call.add) std::memset(call.out + begin, 0, (end - begin) * sizeof(T));
    for (std::size_t k = 0; k < call.count;) {
      const bool adds = call.add || k > 0;
      if (call.count - k >= 4) {
        adds ? decode<true, 4>(call, k, n, begin, end) : decode<false, 4>(call, k, n, begin, end);
        k += 4;
      } else {
        adds ? decode<true, 1>(call, k, n, begin, end) : decode<false, 1>(call, k, n, begin, end);
        k += 1;
      }
    }
  }

  template <typename T>
  void residual(T* const* memory, T* out) const {
    const Vec<T> scale = broadcast(*memory[1]);
    sweep<lanes>(0, n, [=](std::size_t i, auto present) {
      store(residual_of(load(memory[0] + i, present), scale), out + i, present);
    });
  }

  template <typename T>
  void restore(const T* residual, T* const* memory) const {
    if (n != 0 && residual != memory[0]) std::memcpy(memory[0], residual, n * sizeof(T));
    *memory[1] = 0;
  }

  std::size_t n;
  bool scaling;
};

}  // namespace

GLUON_GC_COMPRESSOR(onebit, Onebit)

}  // namespace gluon_gc
