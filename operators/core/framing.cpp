#include "core/framing.h"

#include <cstring>

#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t group_bytes = 60;
constexpr std::size_t group_words = 16;
constexpr std::uint32_t fixed_mask = 0x60000000, fixed_bits = 0x40000000;
using GroupBlocks = Blocks<1024>;

std::uint32_t read_word(const std::uint8_t* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Reads the 60 bytes of a group and, for nothing, the 4 before and the 4 after it.
void frame_group(const std::uint8_t* payload, std::uint32_t* __restrict words) {
#pragma omp simd
  for (std::uint32_t j = 0; j < group_words; ++j) {
    const std::uint32_t before = read_word(payload + 4 * j - 4);
    const std::uint32_t bits = before >> 1 >> (31 - 2 * j) | read_word(payload + 4 * j) << (2 * j);
    words[j] = fixed_bits | (bits & 0x1fffffff) | (bits << 2 & 0x80000000);
  }
}

std::uint32_t payload_bits(std::uint32_t word) { return (word & 0x1fffffff) | (word >> 2 & 0x20000000); }

// Writes eight words of a group's payload.
template <std::uint32_t first>
void unframe_eight(const std::uint32_t* words, std::uint8_t* __restrict payload) {
#pragma omp simd
  for (std::uint32_t j = first; j < first + 8; ++j) {
    const std::uint32_t bits = payload_bits(words[j]) >> (2 * j) | payload_bits(words[j + 1]) << (30 - 2 * j);
    std::memcpy(payload + 4 * j, &bits, sizeof(bits));
  }
}

// Reads the 16 words of a group, writes the 60 bytes; two overlapping halves make 15 words.
void unframe_group(const std::uint32_t* words, std::uint8_t* payload) {
  unframe_eight<0>(words, payload);
  unframe_eight<7>(words, payload);
}

// Calls whole(group) where the group and what lies 4 bytes before and after it are payload, otherwise
// edge(group, its bytes).
template <typename Whole, typename Edge>
void for_each_group(std::size_t nbytes, int threads, Whole whole, Edge edge) {
  const std::size_t groups = nbytes / group_bytes + (nbytes % group_bytes != 0);
  GroupBlocks(groups).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t group = begin; group < end; ++group) {
      const std::size_t left = nbytes - group * group_bytes;
      if (group > 0 && left >= group_bytes + 4) {
        whole(group);
      } else {
        edge(group, left < group_bytes ? left : group_bytes);
      }
    }
  });
}

}  // namespace

template <Isa isa>
void FramingKernels<isa>::frame(const std::uint8_t* payload, std::size_t nbytes, std::uint32_t* words,
                                int threads) {
  const auto whole = [=](std::size_t group) {
    frame_group(payload + group * group_bytes, words + group * group_words);
  };
  const auto edge = [=](std::size_t group, std::size_t bytes) {
    std::uint8_t in[4 + group_bytes + 4] = {};
    std::uint32_t out[group_words];
    std::memcpy(in + 4, payload + group * group_bytes, bytes);
    frame_group(in + 4, out);
    std::memcpy(words + group * group_words, out, frame_words(bytes) * sizeof(out[0]));
  };
  for_each_group(nbytes, threads, whole, edge);
}

template <Isa isa>
void FramingKernels<isa>::unframe(const std::uint32_t* words, std::size_t nbytes, std::uint8_t* payload,
                                  int threads) {
  const auto whole = [=](std::size_t group) {
    unframe_group(words + group * group_words, payload + group * group_bytes);
  };
  const auto edge = [=](std::size_t group, std::size_t bytes) {
    std::uint32_t in[group_words] = {};
    std::uint8_t out[group_bytes];
    std::memcpy(in, words + group * group_words, frame_words(bytes) * sizeof(in[0]));
    unframe_group(in, out);
    std::memcpy(payload + group * group_bytes, out, bytes);
  };
  for_each_group(nbytes, threads, whole, edge);
}

template <Isa isa>
bool FramingKernels<isa>::framed(const std::uint32_t* words, std::size_t n) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) wrong |= (words[i] & fixed_mask) ^ fixed_bits;
  return wrong == 0;
}

template struct FramingKernels<this_isa>;

}  // namespace gluon_gc
