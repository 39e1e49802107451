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

// Fifteen words of payload as they lie in memory, with a zero before and after.
struct Group {
  std::uint32_t word[1 + 15 + 1] = {};
};

void frame_group(const Group& in, std::uint32_t (&out)[group_words]) {
  for (std::uint32_t j = 0; j < group_words; ++j) {
    const std::uint32_t bits = in.word[j] >> 1 >> (31 - 2 * j) | in.word[j + 1] << (2 * j);
    out[j] = fixed_bits | (bits & 0x1fffffff) | (bits << 2 & 0x80000000);
  }
}

void unframe_group(const std::uint32_t (&in)[group_words], std::uint32_t (&out)[15]) {
  std::uint32_t bits[group_words];
  for (std::uint32_t j = 0; j < group_words; ++j) {
    bits[j] = (in[j] & 0x1fffffff) | (in[j] >> 2 & 0x20000000);
  }
  for (std::uint32_t j = 0; j < 15; ++j) out[j] = bits[j] >> (2 * j) | bits[j + 1] << (30 - 2 * j);
}

// Calls step(group, its bytes) for each group, the last of which may be short.
template <typename Step>
void for_each_group(std::size_t nbytes, int threads, Step step) {
  const std::size_t whole = nbytes / group_bytes;
  GroupBlocks(whole).run(threads, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t group = begin; group < end; ++group) step(group, group_bytes);
  });
  if (nbytes % group_bytes != 0) step(whole, nbytes % group_bytes);
}

}  // namespace

template <Isa isa>
void FramingKernels<isa>::frame(const std::uint8_t* payload, std::size_t nbytes, std::uint32_t* words,
                                int threads) {
  for_each_group(nbytes, threads, [=](std::size_t group, std::size_t bytes) {
    Group in;
    std::uint32_t out[group_words];
    std::memcpy(in.word + 1, payload + group * group_bytes, bytes);
    frame_group(in, out);
    std::memcpy(words + group * group_words, out, frame_words(bytes) * sizeof(out[0]));
  });
}

template <Isa isa>
void FramingKernels<isa>::unframe(const std::uint32_t* words, std::size_t nbytes, std::uint8_t* payload,
                                  int threads) {
  for_each_group(nbytes, threads, [=](std::size_t group, std::size_t bytes) {
    std::uint32_t in[group_words] = {};
    std::uint32_t out[15];
    std::memcpy(in, words + group * group_words, frame_words(bytes) * sizeof(in[0]));
    unframe_group(in, out);
    std::memcpy(payload + group * group_bytes, out, bytes);
  });
}

template <Isa isa>
bool FramingKernels<isa>::framed(const std::uint32_t* words, std::size_t n) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) wrong |= (words[i] & fixed_mask) ^ fixed_bits;
  return wrong == 0;
}

template struct FramingKernels<this_isa>;

}  // namespace gluon_gc
