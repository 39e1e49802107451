// Reads the list `low` of a sparse payload (format.h), eight numbers at a time. For kernel sources only (see
// isa.h).
#pragma once

#include "core/bytes.h"
#include "core/compressors/packed_eights.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gluon_gc {
namespace {

// The value at `from`. Bytes from `end` on are not read, and count as 0.
template <typename Value>
inline Value read_until(const std::uint8_t* from, const std::uint8_t* end) {
  if (static_cast<std::size_t>(end - from) >= sizeof(Value)) return read<Value>(from);
  Value value = 0;
  std::memcpy(&value, from, end - from);
  return value;
}

// Unpacks eight numbers of at most 16 bits.
class EightUnpacker {
 public:
#if defined(__AVX2__)
  explicit EightUnpacker(int bits) : mask_(static_cast<int>((1u << bits) - 1)) {
    for (int j = 0; j < 8; ++j) {
      shift_[j] = j * bits % 8;
      for (int byte = 0; byte < 4; ++byte) {
        const int at = j * bits / 8 + byte;
        bytes_[4 * j + byte] = static_cast<std::uint8_t>(at < 16 ? at : 0x80);  // 0x80: a zero
      }
    }
  }

  void operator()(Eight eight, std::uint32_t* numbers) const {
    const __m256i packed = _mm256_broadcastsi128_si256(read<__m128i>(&eight));
    const __m256i words = _mm256_shuffle_epi8(packed, read<__m256i>(bytes_));  // of the four bytes with each number
    const __m256i shifted = _mm256_srlv_epi32(words, read<__m256i>(shift_));
    write(numbers, _mm256_and_si256(shifted, _mm256_set1_epi32(mask_)));
  }

 private:
  std::uint8_t bytes_[32];
  std::int32_t shift_[8];
  int mask_;
#else
  explicit EightUnpacker(int bits) : bits_(bits) {}

  void operator()(Eight eight, std::uint32_t* numbers) const {
    unpack(reinterpret_cast<const std::uint8_t*>(&eight), 8, bits_, numbers);
  }

 private:
  int bits_;
#endif
};

// The low parts of indices, `bits` bits each.
class LowParts {
 public:
  LowParts(const std::uint8_t* list, const std::uint8_t* end, int bits)
      : list_(list), end_(end), bits_(bits), unpack_(bits) {}

  // Writes the low parts of elements first, ..., first + size - 1, and up to seven numbers more. `first` is a multiple
  // of eight.
  void read_from(std::size_t first, std::size_t size, std::uint32_t* parts) const {
    const std::uint8_t* from = list_ + first / 8 * bits_;
    if (bits_ > 16) return read_long(from, size, parts);
    for (std::size_t j = 0; j < size; j += 8, from += bits_) unpack_(read_until<Eight>(from, end_), parts + j);
  }

 private:
  // For more than 16 bits, which very sparse payloads have.
  void read_long(const std::uint8_t* from, std::size_t size, std::uint32_t* parts) const {
    for (std::size_t j = 0; j < size; ++j) {
      const std::size_t bit = j * bits_;
      const std::uint64_t word = read_until<std::uint64_t>(from + bit / 8, end_) >> bit % 8;
      parts[j] = static_cast<std::uint32_t>(word) & ((1u << bits_) - 1);
    }
  }

  const std::uint8_t *const list_, *const end_;
  const int bits_;
  const EightUnpacker unpack_;
};

}  // namespace
}  // namespace gluon_gc
