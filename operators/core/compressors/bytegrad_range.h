// The first sweep of bytegrad: momentum and feedback, and the range of what comes out of them. For kernel
// sources only (see isa.h).
#pragma once

#include "core/correction.h"
#include "core/parallel.h"

namespace gluon_gc {
namespace {

template <typename T>
constexpr T infinity_of = static_cast<T>(__builtin_inf());
template <typename T>
constexpr T nan_of = static_cast<T>(__builtin_nan(""));

// The least and the largest of some elements; NaNs if one of them is not finite.
template <typename T>
struct Range {
  void include(T x) {
    if (x - x != T{0}) low = high = nan_of<T>;
    if (x < low) low = x;
    if (x > high) high = x;
  }

  // Whether there are elements that differ, which takes a byte each to say.
  bool has_steps() const { return low < high; }

  T low = infinity_of<T>, high = -infinity_of<T>;
};

template <typename T>
using SignedBits = std::make_signed_t<Bits<T>>;

// Lane by lane, of the bits as integers.
template <typename T>
inline Vec<T> largest_signed(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) {
    const T x = a.lane[i], y = b.lane[i];
    return static_cast<SignedBits<T>>(read_bits(x)) > static_cast<SignedBits<T>>(read_bits(y)) ? x : y;
  });
}
template <typename T>
inline Vec<T> largest_unsigned(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) {
    const T x = a.lane[i], y = b.lane[i];
    return read_bits(x) > read_bits(y) ? x : y;
  });
}
template <typename T>
inline Vec<T> least_unsigned(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) {
    const T x = a.lane[i], y = b.lane[i];
    return read_bits(x) < read_bits(y) ? x : y;
  });
}

#if defined(__AVX512F__)

inline __m512i bits(Vec<float> a) { return _mm512_castps_si512(a.v); }
inline Vec<float> largest_signed(Vec<float> a, Vec<float> b) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(bits(a), bits(b)))};
}
inline Vec<float> largest_unsigned(Vec<float> a, Vec<float> b) {
  return {_mm512_castsi512_ps(_mm512_max_epu32(bits(a), bits(b)))};
}
inline Vec<float> least_unsigned(Vec<float> a, Vec<float> b) {
  return {_mm512_castsi512_ps(_mm512_min_epu32(bits(a), bits(b)))};
}

#elif defined(__AVX2__)

template <typename Function>
inline Vec<float> each_half(Vec<float> a, Vec<float> b, Function function) {
  const auto bits = [](__m256 half) { return _mm256_castps_si256(half); };
  return {_mm256_castsi256_ps(function(bits(a.low), bits(b.low))),
          _mm256_castsi256_ps(function(bits(a.high), bits(b.high)))};
}
inline Vec<float> largest_signed(Vec<float> a, Vec<float> b) {
  return each_half(a, b, [](__m256i x, __m256i y) { return _mm256_max_epi32(x, y); });
}
inline Vec<float> largest_unsigned(Vec<float> a, Vec<float> b) {
  return each_half(a, b, [](__m256i x, __m256i y) { return _mm256_max_epu32(x, y); });
}
inline Vec<float> least_unsigned(Vec<float> a, Vec<float> b) {
  return each_half(a, b, [](__m256i x, __m256i y) { return _mm256_min_epu32(x, y); });
}

#endif

// The first lane also in those that are not in memory.
template <typename T>
inline Vec<T> repeat_first(const Vec<T>& v, All) {
  return v;
}
template <typename T>
inline Vec<T> repeat_first(const Vec<T>& v, First present) {
  T lane[lanes];
  store(v, lane, All{});
  return choose(all_bits(present), v, broadcast(lane[0]));
}

// Elements of which one is the least and one the largest, among all that were added.
//
// As integers, the bits of positive numbers ascend, and so do those of negative ones the further they are
// from zero: above all others if unsigned, below them if signed. NaNs are further than infinity.
template <typename T>
struct Extremes {
  template <typename Lanes>
  void add(const Vec<T>& v, Lanes present) {
    const Vec<T> p = repeat_first(v, present);
    largest = largest_signed(p, largest);
    most_negative = largest_unsigned(p, most_negative);
    nearest_zero = least_unsigned(p, nearest_zero);
  }

  Range<T> range() const {
    T lane[3 * lanes];
    store(largest, lane, All{});
    store(most_negative, lane + lanes, All{});
    store(nearest_zero, lane + 2 * lanes, All{});
    Range<T> range;
    for (const T x : lane) range.include(x);
    return range;
  }

  // To begin with, bits that those of any number replace.
  Vec<T> largest = broadcast(T{-0.0}), most_negative = broadcast(T{0}), nearest_zero = broadcast(-nan_of<T>);
};

// Updates momentum, stores p in the residual if there is one, and returns the range of p.
template <typename T, typename Correct>
Range<T> corrected_range(const Correct& correct, std::size_t n, T* residual, int threads) {
  if (n == 0) return {0, 0};
  constexpr std::size_t unroll = 4;  // a step is hardly longer than the loop around it
  const Blocks<16384> blocks(n);
  Range<T> ranges[max_blocks];
  blocks.run(threads, [=, &ranges](std::size_t block, std::size_t begin, std::size_t end) {
    Extremes<T> extremes;
    const auto step = [=, &extremes](std::size_t i, auto present) {
      const Vec<T> p = correct(i, present);
      if constexpr (Correct::feedback != Feedback::none) store(p, residual + i, present);
      extremes.add(p, present);
    };
    std::size_t i = begin;
    for (; end - i >= unroll * lanes; i += unroll * lanes) {
      for (std::size_t part = 0; part < unroll; ++part) step(i + part * lanes, All{});
    }
    sweep<lanes>(i, end, step);
    ranges[block] = extremes.range();
  });
  Range<T> range;
  for (std::size_t block = 0; block < blocks.count; ++block) {
    range.include(ranges[block].low);
    range.include(ranges[block].high);
  }
  return {range.low + T{0}, range.high + T{0}};  // so that zeros have no sign
}

}  // namespace
}  // namespace gluon_gc
