#include "core/framing.h"

#include <cstring>

#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t block_words = framing_block_words, block_bytes = framing_block_bytes;
constexpr std::uint32_t header = 0x40000000, number_mask = 127;
constexpr int exponent_at = 23;
using FramingBlocks = Blocks<128>;

template <typename T>
T lesser(T a, T b) {
  return a < b ? a : b;
}

std::uint8_t exponent(std::uint32_t word) { return static_cast<std::uint8_t>(word >> exponent_at); }

// 0 for the exponents 0 and 255, which are not normal, and > 0 for all others.
std::uint8_t normality(std::uint8_t exponent) { return static_cast<std::uint8_t>(exponent + 1) & 0xfe; }

// The least number that makes all exponents normal by exclusive or.
std::uint8_t least_number(const std::uint8_t* exponents) {
  for (std::uint8_t number = 0;; ++number) {
    std::uint8_t least = 255;
#pragma omp simd reduction(min : least)
    for (std::size_t j = 0; j < block_words; ++j) {
      least = lesser(least, normality(static_cast<std::uint8_t>(exponents[j] ^ number)));
    }
    if (least != 0) return number;
  }
}

std::uint32_t read_word(const std::uint8_t* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Frames a whole block of 127 words.
void frame_block(const std::uint8_t* payload, std::uint32_t* __restrict words) {
  std::uint8_t exponents[block_words];
#pragma omp simd
  for (std::size_t j = 0; j < block_words - 1; ++j) exponents[j] = exponent(read_word(payload + 4 * j));
  exponents[block_words - 1] = exponents[0];
  const std::uint32_t number = least_number(exponents);
  words[0] = header | number;
#pragma omp simd
  for (std::size_t j = 0; j < block_words - 1; ++j) {
    words[j + 1] = read_word(payload + 4 * j) ^ number << exponent_at;
  }
}

// Reads a header and `bytes` of payload, at most 127 words.
void unframe_block(const std::uint32_t* words, std::size_t bytes, std::uint8_t* __restrict payload) {
  const std::uint32_t mask = (words[0] & number_mask) << exponent_at;
  const std::size_t whole = bytes / sizeof(mask), left = bytes % sizeof(mask);
#pragma omp simd
  for (std::size_t j = 0; j < whole; ++j) {
    const std::uint32_t word = words[j + 1] ^ mask;
    std::memcpy(payload + 4 * j, &word, sizeof(word));
  }
  if (left == 0) return;
  const std::uint32_t word = words[whole + 1] ^ mask;
  std::memcpy(payload + 4 * whole, &word, left);
}

template <typename Body>
void for_each_block(std::size_t nbytes, int threads, Body body) {
  FramingBlocks(nbytes / block_bytes + (nbytes % block_bytes != 0))
      .run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t block = begin; block < end; ++block) {
          body(block, lesser(block_bytes, nbytes - block * block_bytes));
        }
      });
}

}  // namespace

template <Isa isa>
void FramingKernels<isa>::frame(const std::uint8_t* payload, std::size_t nbytes, std::uint32_t* words,
                                int threads) {
  for_each_block(nbytes, threads, [=](std::size_t block, std::size_t bytes) {
    const std::uint8_t* const from = payload + block * block_bytes;
    std::uint32_t* const to = words + block * block_words;
    if (bytes == block_bytes) return frame_block(from, to);
    std::uint8_t in[block_bytes] = {};
    std::uint32_t out[block_words];
    std::memcpy(in, from, bytes);
    frame_block(in, out);
    std::memcpy(to, out, (1 + (bytes + 3) / 4) * sizeof(out[0]));
  });
}

template <Isa isa>
void FramingKernels<isa>::unframe(const std::uint32_t* words, std::size_t nbytes, std::uint8_t* payload,
                                  int threads) {
  for_each_block(nbytes, threads, [=](std::size_t block, std::size_t bytes) {
    unframe_block(words + block * block_words, bytes, payload + block * block_bytes);
  });
}

template <Isa isa>
bool FramingKernels<isa>::framed(const std::uint32_t* words, std::size_t n) {
  bool right = true;
  for (std::size_t begin = 0; begin < n; begin += block_words) {
    const std::size_t count = lesser(block_words, n - begin);
    right &= (words[begin] & ~number_mask) == header;
    std::uint8_t least = 255;
#pragma omp simd reduction(min : least)
    for (std::size_t j = 0; j < count; ++j) least = lesser(least, normality(exponent(words[begin + j])));
    right &= least != 0;
  }
  return right;
}

template struct FramingKernels<this_isa>;

}  // namespace gluon_gc
