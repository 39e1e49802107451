// Writes the payloads of topk and dgc (core/compressors/sparse/format.h), and sums them: one launch to begin the sum,
// and one for each payload.
#pragma once

#include "core/compressors/sparse/format.h"
#include "cuda/bytes.cuh"
#include "cuda/grid.cuh"
#include "cuda/half.cuh"
#include "cuda/scan.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

constexpr int word_bits = 32;

// A list of bits at any address, divided into words at aligned addresses. The first word and the last one may have
// bytes outside of the list, which are never accessed.
template <typename Byte>
struct BitList {
  __device__ BitList(Byte* begin, Size bytes)
      : begin(begin), first(reinterpret_cast<Size>(begin) % sizeof(uint32)), end(first + bytes) {}

  // The number of words with the first `bits` bits of the list.
  __device__ Size words(Size bits) const { return (8 * first + bits + word_bits - 1) / word_bits; }

  // Whether all bytes of a word are in the list.
  __device__ bool whole(Size word) const {
    return word * sizeof(uint32) >= first && (word + 1) * sizeof(uint32) <= end;
  }

  __device__ uint32* at(Size word) const {
    return reinterpret_cast<uint32*>(reinterpret_cast<Size>(begin) - first) + word;
  }

  // Calls step(address, i) for each byte i of a word that is in the list.
  template <typename Step>
  __device__ void for_each_byte(Size word, Step step) const {
    for (Size i = 0; i < sizeof(uint32); ++i) {
      const Size place = word * sizeof(uint32) + i;
      if (place >= first && place < end) step(begin + (place - first), static_cast<int>(i));
    }
  }

  // A word, in which bytes outside of the list are 0.
  __device__ uint32 load(Size word) const {
    if (whole(word)) return *at(word);
    uint32 bits = 0;
    for_each_byte(word, [&](const uint8* byte, int i) { bits |= uint32{*byte} << 8 * i; });
    return bits;
  }

  // The number of `count` bits from this bit on.
  __device__ uint32 number(Size bit, int count) const {
    const Size place = 8 * first + bit, word = place / word_bits;
    const int shift = place % word_bits;
    uint64 bits = count == 0 ? 0 : load(word);
    if (shift + count > word_bits) bits |= uint64{load(word + 1)} << word_bits;
    return static_cast<uint32>(bits >> shift) & ((1u << count) - 1);
  }

  Byte* const begin;
  const Size first, end;  // the bytes of the list in its words
};

// Writes a payload. Threads add elements in any order, after clear_lists in an earlier launch. `edges` are two words,
// initially 0. They collect the bits of words that are only in part in the lists.
template <typename T>
struct SparseWriter {
  __device__ SparseWriter(const SparseFormat& format, uint8* payload, uint32 count, uint32* edges)
      : format(format),
        lists(payload + format.begin, format.values_at(count) - format.begin),
        low(8 * (format.low_at(count) - format.begin)),
        values(payload + format.values_at(count)),
        edges(edges) {}

  // Writes element `place` of the payload. Returns what its value loses.
  __device__ T add(uint32 place, uint32 index, T x) const {
    set(place + (index >> format.low_bits), 1);
    set(low + Size{place} * format.low_bits, index & ((1u << format.low_bits) - 1));
    const T value = x == x ? x : not_a_number<T>();
    if (!format.half_values) {
      write(values, place, value);
      return 0;
    }
    const uint16 half = finite_half_bits(value);
    write(values, place, half);
    return x - static_cast<T>(half_value(half));
  }

  // Writes the bytes of the edges, on one thread, after all elements.
  __device__ void finish() const {
    write_edge(0, published(edges));
    if (lists.end > sizeof(uint32)) write_edge((lists.end - 1) / sizeof(uint32), published(edges + 1));
  }

 private:
  __device__ void set(Size bit, uint32 number) const {
    const Size place = 8 * lists.first + bit;
    const uint64 bits = uint64{number} << place % word_bits;
    set_word(place / word_bits, static_cast<uint32>(bits));
    set_word(place / word_bits + 1, static_cast<uint32>(bits >> word_bits));
  }

  __device__ void set_word(Size word, uint32 bits) const {
    if (bits != 0) atomicOr(lists.whole(word) ? lists.at(word) : edges + (word != 0), bits);
  }

  __device__ void write_edge(Size word, uint32 bits) const {
    if (lists.whole(word)) return;
    lists.for_each_byte(word, [=](uint8* byte, int i) { *byte = static_cast<uint8>(bits >> 8 * i); });
  }

  const SparseFormat format;
  const BitList<uint8> lists;
  const Size low;  // the first bit of the list `low`
  uint8* const values;
  uint32* const edges;
};

// Clears the lists of a payload of at most `count` elements, except its first and last bytes.
__device__ inline void clear_lists(const SparseFormat& format, uint8* payload, uint32 count) {
  const BitList<uint8> lists(payload + format.begin, format.values_at(count) - format.begin);
  for_each_element(lists.words(8 * (lists.end - lists.first)), [&](Size word) {
    if (lists.whole(word)) *lists.at(word) = 0;
  });
}

// Begins the sum: sets out to 0, unless `add`, and writes the status. `bytes` of all messages are in use.
template <typename T>
__device__ void begin_sum(const Decoding<T>& call, Size bytes) {
  if (!call.add) for_each_element(call.n, [&](Size i) { call.out[i] = 0; });
  if (call.status != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *call.status = {bytes, 1};
}

// Adds the elements of a payload to out. A warp takes a word of the list `high`, and a lane one of its bits. A block
// counts the elements of all words before its own ones.
template <typename T>
__device__ void add_payload(const Decoding<T>& call, const SparseFormat& format, const uint8* payload, uint32 count) {
  const BitList<const uint8> lists(payload + format.begin, format.values_at(count) - format.begin);
  const uint8* const values = payload + format.values_at(count);
  const Size low = 8 * (format.low_at(count) - format.begin), high_end = 8 * lists.first + format.high_bits(count);
  const Size words = lists.words(format.high_bits(count));
  const auto high = [&](Size word) {
    const uint32 bits = lists.load(word);
    const Size left = high_end - word * word_bits;
    return left < word_bits ? bits & ((1u << left) - 1) : bits;
  };
  Size counted = 0;  // words whose elements are in `before`
  uint32 before = 0;
  for (Size chunk = Size{blockIdx.x} * warps; chunk < words; chunk += Size{gridDim.x} * warps) {
    uint32 skipped = 0;
#pragma unroll 4
    for (Size word = counted + threadIdx.x; word < chunk; word += block_threads) skipped += __popc(high(word));
    before += scan(skipped).all;
    counted = chunk;
    const Size own = chunk + warp(), other = chunk + lane();
    const uint32 in_chunk = lane() < warp() && other < words ? __popc(high(other)) : 0;
    const uint32 first = before + scan_warp(in_chunk).all;
    const uint32 bits = own < words ? high(own) : 0;
    if ((bits >> lane() & 1) == 0) continue;
    const uint32 place = first + __popc(bits & ((1u << lane()) - 1));
    const uint32 upper = static_cast<uint32>(own * word_bits + lane() - 8 * lists.first) - place;
    const uint32 index = upper << format.low_bits | lists.number(low + Size{place} * format.low_bits, format.low_bits);
    const T x = format.half_values ? static_cast<T>(to_float(read<Half>(values, place))) : read<T>(values, place);
    call.out[index] = call.out[index] + x;
    if (call.status != nullptr && !is_finite(x)) call.status->finite = 0;
  }
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
