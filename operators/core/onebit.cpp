#include "core/onebit.h"

#include "core/bytes.h"
#include "core/correction.h"
#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t word_elements = 32;
using ElementBlocks = Blocks<16384>;

std::uint32_t read_word(const void* words, std::size_t index) {
  return read<std::uint32_t>(static_cast<const char*>(words) + index * sizeof(std::uint32_t));
}

void write_word(void* words, std::size_t index, std::uint32_t word) {
  write(static_cast<char*>(words) + index * sizeof(word), word);
}

template <typename T>
T read_scale(const void* payload, std::size_t n) {
  return read<T>(static_cast<const char*>(payload) + onebit_words(n) * sizeof(std::uint32_t));
}

template <typename T>
void write_scale(void* payload, std::size_t n, T scale) {
  write(static_cast<char*>(payload) + onebit_words(n) * sizeof(std::uint32_t), scale);
}

// The two values that a sign decodes to.
template <typename T>
struct Decoder {
  explicit Decoder(T scale) : plus(broadcast(scale)), minus(broadcast(-scale)) {}
  Vec<T> operator()(std::uint32_t signs) const { return choose(signs, minus, plus); }
  Vec<T> plus, minus;
};

// e = p - D(p). A p that feedback made is never -0.0, so its sign bit says what D chose.
template <typename T>
Vec<T> residual_of(const Vec<T>& p, const Vec<T>& scale) {
  return p - with_sign_of(p, scale);
}

// The residual of the p that was kept.
template <typename T>
struct LazyResidual {
  explicit operator bool() const { return corrected != nullptr; }
  void prefetch(std::size_t i) const { prefetch_ahead(corrected + i); }

  template <typename Lanes>
  Vec<T> operator()(std::size_t i, Lanes present) const {
    return residual_of(load(corrected + i, present), scale);
  }

  const T* corrected;
  Vec<T> scale;
};

// Writes the words of the payload and, with feedback, the p that they stand for. Returns the sum of |p|.
template <typename T, typename Correct>
double compress_words(const Correct& correct, std::size_t n, T* corrected, void* payload, int threads) {
  const auto part = [=](std::size_t i, auto present) {
    const Vec<T> p = correct(i, present);
    if constexpr (Correct::feedback != Feedback::none) store(p, corrected + i, present);
    return keep(p, present);
  };
  const ElementBlocks blocks(n);
  double block_sums[max_blocks];
  blocks.run(threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
    LaneSums<T> low_sums, high_sums;
    sweep<word_elements>(begin, end, [=, &low_sums, &high_sums](std::size_t i, auto present) {
      const Vec<T> low = part(i, present.part(0));
      const Vec<T> high = part(i + lanes, present.part(1));
      low_sums.add_magnitude(low);
      high_sums.add_magnitude(high);
      write_word(payload, i / word_elements, negative(low) | negative(high) << lanes);
    });
    block_sums[block] = low_sums.total() + high_sums.total();
  });
  double sum = 0;
  for (std::size_t block = 0; block < blocks.count; ++block) sum += block_sums[block];
  return sum;
}

// Calls step(word index, part of the word, first element, lanes) for every sixteen elements.
template <typename Step>
void for_each_part(std::size_t n, int threads, Step step) {
  ElementBlocks(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    sweep<word_elements>(begin, end, [=](std::size_t i, auto present) {
      step(i / word_elements, 0, i, present.part(0));
      step(i / word_elements, 1, i + lanes, present.part(1));
    });
  });
}

std::uint32_t read_signs(const void* payload, std::size_t word, int part) {
  return read_word(payload, word) >> (part * lanes) & 0xffff;
}

}  // namespace

template <Isa isa, typename T>
double OnebitKernels<isa, T>::compress(const T* gradient, std::size_t n, T gradient_scale, bool scaling,
                                       const OnebitState<T>& state, void* payload, int threads) {
  const LazyResidual<T> residual{state.corrected, broadcast(state.corrected ? *state.scale : T{0})};
  const auto compress_all = [=](const auto& correct) {
    return compress_words(correct, n, state.corrected, payload, threads);
  };
  const FeedbackState<T> feedback{state.momentum, state.mu, state.corrected, state.ratio};
  const double sum = with_correction(gradient, gradient_scale, feedback, residual, compress_all);
  const T mean = n == 0 ? T{0} : static_cast<T>(sum / static_cast<double>(n));
  const T scale = scaling ? mean : T{1};
  write_scale(payload, n, scale);
  if (state.corrected) *state.scale = scale;
  return sum;
}

template <Isa isa, typename T>
void OnebitKernels<isa, T>::decompress(const void* payload, std::size_t n, T* out, int threads) {
  const Decoder<T> decode(read_scale<T>(payload, n));
  for_each_part(n, threads, [=](std::size_t word, int part, std::size_t i, auto present) {
    store(decode(read_signs(payload, word, part)), out + i, present);
  });
}

template <Isa isa, typename T>
void OnebitKernels<isa, T>::decompress_add(const void* payload, std::size_t n, T* out, int threads) {
  const Decoder<T> decode(read_scale<T>(payload, n));
  for_each_part(n, threads, [=](std::size_t word, int part, std::size_t i, auto present) {
    store(load(out + i, present) + decode(read_signs(payload, word, part)), out + i, present);
  });
}

template <Isa isa, typename T>
void OnebitKernels<isa, T>::decompress_sum(const void* payloads, std::size_t stride_bytes,
                                           std::size_t count, std::size_t n, T* out, int threads) {
  const char* const first = static_cast<const char*>(payloads);
  for_each_part(n, threads, [=](std::size_t word, int part, std::size_t i, auto present) {
    Vec<T> sum = broadcast(T{0});
    for (std::size_t k = 0; k < count; ++k) {
      const char* const payload = first + k * stride_bytes;
      const Decoder<T> decode(read_scale<T>(payload, n));
      const Vec<T> decoded = decode(read_signs(payload, word, part));
      sum = k == 0 ? decoded : sum + decoded;
    }
    store(sum, out + i, present);
  });
}

template <Isa isa, typename T>
void OnebitKernels<isa, T>::residual(const T* corrected, T scale, std::size_t n, T* residual) {
  const Vec<T> scales = broadcast(scale);
  sweep<lanes>(0, n, [=](std::size_t i, auto present) {
    store(residual_of(load(corrected + i, present), scales), residual + i, present);
  });
}

template struct OnebitKernels<this_isa, float>;
template struct OnebitKernels<this_isa, double>;

}  // namespace gluon_gc
