// A vector of sixteen lanes of T. For kernel sources only (see isa.h). The portable version in this file is the
// specification. vec_avx2.h and vec_avx512.h overload it for float, with the same bits as results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/half_bits.h"
#include "core/isa.h"

namespace gluon_gc {
namespace {

constexpr Isa this_isa = Isa::GLUON_GC_ISA;

constexpr std::size_t lanes = 16;

// Which lanes are in memory: All of them, or at the end of an array only the First `count`.
struct All {
  All part(std::size_t) const { return {}; }
};
struct First {
  // The lanes in memory of vector `index`, where `count` is for a group of several vectors.
  First part(std::size_t index) const {
    const std::size_t before = index * lanes;
    const std::size_t left = count > before ? count - before : 0;
    return {left < lanes ? left : lanes};
  }
  std::size_t count;
};

// Calls step(i, All) for each whole group of elements in [begin, end), then step(i, First) for the rest.
template <std::size_t group, typename Step>
inline void sweep(std::size_t begin, std::size_t end, Step step) {
  std::size_t i = begin;
  for (; end - i >= group; i += group) step(i, All{});
  if (i < end) step(i, First{end - i});
}

// Prefetches the cache line prefetch_bytes after `at`, into the second-level cache. A loop with much arithmetic between
// its loads needs this: the CPU's out-of-order execution does not run far enough ahead to keep memory busy. The
// first-level cache can wait for fewer lines at a time. Always inlined, because GCC 12 removes calls of a function that
// does nothing but prefetch.
constexpr std::size_t prefetch_bytes = 768;

template <std::size_t bytes = prefetch_bytes, typename T>
[[gnu::always_inline]] inline void prefetch_ahead(const T* at) {
  constexpr int into_second_level = 2;
  __builtin_prefetch(reinterpret_cast<const char*>(at) + bytes, 0, into_second_level);
}

// The same for a loop over a tile that stays in the first-level cache and is then processed further. It prefetches so
// far ahead that memory is busy meanwhile too.
constexpr std::size_t tile_prefetch_bytes = 8192;

template <typename T>
[[gnu::always_inline]] inline void prefetch_tiles_ahead(const T* at) {
  prefetch_ahead<tile_prefetch_bytes>(at);
}

template <typename T>
struct Vec {
  T lane[lanes];
};

template <typename T, typename Function>
inline Vec<T> generate(Function value) {
  Vec<T> result;
#pragma omp simd
  for (std::size_t i = 0; i < lanes; ++i) result.lane[i] = value(i);
  return result;
}

template <typename T>
inline Vec<T> load(const T* from, All) {
  Vec<T> result;
  std::memcpy(result.lane, from, sizeof(result.lane));
  return result;
}

// Lanes that are not in memory become zero.
template <typename T>
inline Vec<T> load(const T* from, First present) {
  Vec<T> result = {};
  std::memcpy(result.lane, from, present.count * sizeof(T));
  return result;
}

template <typename T>
inline void store(const Vec<T>& v, T* to, All) {
  std::memcpy(to, v.lane, sizeof(v.lane));
}

template <typename T>
inline void store(const Vec<T>& v, T* to, First present) {
  std::memcpy(to, v.lane, present.count * sizeof(T));
}

// Stores past the caches, where the instruction set can. `to` is aligned to the vector's size. Other threads see the
// values after an sfence (parallel.h).
template <typename T, typename Lanes>
inline void stream(const Vec<T>& v, T* to, Lanes present) {
  store(v, to, present);
}

template <typename T>
inline Vec<T> broadcast(T x) {
  return generate<T>([=](std::size_t) { return x; });
}

template <typename T>
inline Vec<T> operator+(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) { return a.lane[i] + b.lane[i]; });
}

template <typename T>
inline Vec<T> operator-(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) { return a.lane[i] - b.lane[i]; });
}

template <typename T>
inline Vec<T> operator*(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) { return a.lane[i] * b.lane[i]; });
}

// The lesser (greater) of a and b in each lane; b if a lane of either is NaN.
template <typename T>
inline Vec<T> lesser(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
template <typename T>
inline Vec<T> greater(const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}

// A table, because not every instruction set can shift each lane by a different count.
constexpr std::uint32_t lane_bit[lanes] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                           1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};

// Bit i of the result: a < b in lane i.
template <typename T>
inline std::uint32_t less(const Vec<T>& a, const Vec<T>& b) {
  std::uint32_t bits = 0;
#pragma omp simd reduction(| : bits)
  for (std::size_t i = 0; i < lanes; ++i) bits |= a.lane[i] < b.lane[i] ? lane_bit[i] : 0;
  return bits;
}

// The magnitude, which must not be negative, with the sign of each lane of `signs`.
template <typename T>
inline Vec<T> with_sign_of(const Vec<T>& signs, const Vec<T>& magnitude) {
  return generate<T>([&](std::size_t i) {
    return static_cast<T>(__builtin_copysign(magnitude.lane[i], signs.lane[i]));
  });
}

// Bit i of the result: |lane i| >= `least`, where their bits are compared as integers. That is the order of |x|, with
// NaNs above infinity.
template <typename T>
inline std::uint32_t magnitude_at_least(const Vec<T>& v, Bits<T> least) {
  constexpr Bits<T> magnitude = static_cast<Bits<T>>(-1) >> 1;
  std::uint32_t bits = 0;
#pragma omp simd reduction(| : bits)
  for (std::size_t i = 0; i < lanes; ++i) {
    bits |= (bits_of(v.lane[i]) & magnitude) >= least ? lane_bit[i] : 0;
  }
  return bits;
}

// The larger of |a| and |b|, compared in the same way.
template <typename T>
inline Vec<T> larger_magnitude(const Vec<T>& a, const Vec<T>& b) {
  constexpr Bits<T> magnitude = static_cast<Bits<T>>(-1) >> 1;
  return generate<T>([&](std::size_t i) {
    const Bits<T> x = bits_of(a.lane[i]) & magnitude, y = bits_of(b.lane[i]) & magnitude;
    const Bits<T> larger = x > y ? x : y;
    T result;
    std::memcpy(&result, &larger, sizeof(result));
    return result;
  });
}

// A mask with a bit for each lane that is in memory.
inline std::uint32_t all_bits(All) { return (1u << lanes) - 1; }
inline std::uint32_t all_bits(First present) { return (1u << present.count) - 1; }

// Lane i of a where bit i is set, else of b.
template <typename T>
inline Vec<T> choose(std::uint32_t bits, const Vec<T>& a, const Vec<T>& b) {
  return generate<T>([&](std::size_t i) {
    const T set = a.lane[i], clear = b.lane[i];  // loading both lets the compiler vectorise
    return bits & lane_bit[i] ? set : clear;
  });
}

// choose(less(a, b), x, y). AVX2 has no registers for the bits of `less`.
template <typename T>
inline Vec<T> choose_less(const Vec<T>& a, const Vec<T>& b, const Vec<T>& x, const Vec<T>& y) {
  return choose(less(a, b), x, y);
}

template <typename T>
inline Vec<T> keep(const Vec<T>& v, All) {
  return v;
}

// Sets the lanes that are not in memory to zero.
template <typename T>
inline Vec<T> keep(const Vec<T>& v, First present) {
  return generate<T>([&](std::size_t i) { return i < present.count ? v.lane[i] : T{0}; });
}

// Conversion of floats to and from the bits of float16. T is float.
template <typename T>
struct Half {
  static Vec<std::uint16_t> from(const Vec<T>& v) {
    return generate<std::uint16_t>([&](std::size_t i) { return half_bits(v.lane[i]); });
  }
  static Vec<T> to(const Vec<std::uint16_t>& v) {
    return generate<T>([&](std::size_t i) { return half_value(v.lane[i]); });
  }
};

}  // namespace
}  // namespace gluon_gc

#if defined(__AVX512F__)
#include "core/vec_avx512.h"
#elif defined(__AVX2__)
#include "core/vec_avx2.h"
#endif

namespace gluon_gc {
namespace {

// Bit i of the result: lane i < 0. It is 0 for -0.0 and NaN.
template <typename T>
inline std::uint32_t negative(const Vec<T>& v) {
  return less(v, broadcast(T{0}));
}

}  // namespace
}  // namespace gluon_gc
