#include "core/onebit.h"

#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t word_elements = 32;
using ElementBlocks = Blocks<16384>;

std::uint32_t read_word(const void* words, std::size_t index) {
  std::uint32_t word;
  std::memcpy(&word, static_cast<const char*>(words) + index * sizeof(word), sizeof(word));
  return word;
}

void write_word(void* words, std::size_t index, std::uint32_t word) {
  std::memcpy(static_cast<char*>(words) + index * sizeof(word), &word, sizeof(word));
}

template <typename T>
T read_scale(const void* payload, std::size_t n) {
  T scale;
  std::memcpy(&scale, static_cast<const char*>(payload) + onebit_words(n) * sizeof(std::uint32_t),
              sizeof(scale));
  return scale;
}

template <typename T>
void write_scale(void* payload, std::size_t n, T scale) {
  std::memcpy(static_cast<char*>(payload) + onebit_words(n) * sizeof(std::uint32_t), &scale,
              sizeof(scale));
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

// What becomes of the residual e; `scaled` is apart since the usual ratio is 1.
enum class Feedback { none, plain, scaled };

// Momentum and feedback for sixteen elements from i: updates the state and returns p.
template <typename T, bool with_momentum, Feedback feedback>
struct Correction {
  Correction(T gradient_scale, const OnebitState<T>& state)
      : gradient_scale(broadcast(gradient_scale)),
        mu(broadcast(state.mu)),
        ratio(broadcast(state.ratio)),
        scale(broadcast(feedback == Feedback::none ? T{0} : *state.scale)),
        momentum(state.momentum),
        corrected(state.corrected) {}

  template <typename Lanes>
  Vec<T> operator()(const T* gradient, std::size_t i, Lanes present) const {
    prefetch_ahead(gradient + i);
    Vec<T> p = load(gradient + i, present) * gradient_scale;
    if constexpr (with_momentum) {
      prefetch_ahead(momentum + i);
      const Vec<T> m = mu * load(momentum + i, present) + p;
      store(m, momentum + i, present);
      p = p + mu * m;
    }
    if constexpr (feedback != Feedback::none) {
      prefetch_ahead(corrected + i);
      const Vec<T> residual = residual_of(load(corrected + i, present), scale);
      if constexpr (feedback == Feedback::plain) p = p + residual;
      if constexpr (feedback == Feedback::scaled) p = p + ratio * residual;
      store(p, corrected + i, present);
    }
    return keep(p, present);
  }

  const Vec<T> gradient_scale, mu, ratio, scale;
  T* const momentum;
  T* const corrected;
};

// Writes the words of the payload and returns the sum of |p|.
template <typename T, bool with_momentum, Feedback feedback>
double compress_words(const T* gradient, std::size_t n, T gradient_scale, const OnebitState<T>& state,
                      void* payload, int threads) {
  const Correction<T, with_momentum, feedback> correct(gradient_scale, state);
  const ElementBlocks blocks(n);
  double block_sums[max_blocks];
  blocks.run(threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
    LaneSums<T> low_sums, high_sums;
    sweep<word_elements>(begin, end, [=, &low_sums, &high_sums](std::size_t i, auto present) {
      const Vec<T> low = correct(gradient, i, present.part(0));
      const Vec<T> high = correct(gradient, i + lanes, present.part(1));
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

template <typename T>
constexpr decltype(&compress_words<T, false, Feedback::none>) compress_words_for[2][3] = {
    {compress_words<T, false, Feedback::none>, compress_words<T, false, Feedback::plain>,
     compress_words<T, false, Feedback::scaled>},
    {compress_words<T, true, Feedback::none>, compress_words<T, true, Feedback::plain>,
     compress_words<T, true, Feedback::scaled>}};

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
  const Feedback feedback = !state.corrected      ? Feedback::none
                            : state.ratio == T{1} ? Feedback::plain
                                                  : Feedback::scaled;
  const auto sweep_words = compress_words_for<T>[state.momentum != nullptr][static_cast<int>(feedback)];
  const double sum = sweep_words(gradient, n, gradient_scale, state, payload, threads);
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
