// How the k largest of n elements are looked for on the GPU, and the memory that this takes. For host and device.
#pragma once

#include "core/compressors/sparse_format.h"
#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

// The magnitude that decides is found from its highest bits on, so many at a time.
constexpr int digit_bits = 11, digit_values = 1 << digit_bits;

template <typename T>
constexpr int magnitude_width = 8 * sizeof(T) - 1;

template <typename T>
constexpr int digit_count = (sign_shift<T> + digit_bits - 1) / digit_bits;

// Elements that lie side by side in the sample that the threshold is estimated from.
constexpr uint32 sample_neighbours = 8;

// What TopkPlan of core/compressors/topk_plan.h is, with k: fewer than 2^32 each.
struct Search {
  uint32 k;
  uint32 rank;      // 0: all elements are looked at
  uint32 fold;
  uint32 capacity;  // of the list of candidates
};

// Parts of the tiles of n elements, each of which is sent by one warp.
struct Parts {
  constexpr explicit Parts(Size n)
      : all_tiles(static_cast<uint32>(tiles_of(n))),
        tiles((all_tiles + most - 1) / most),
        count(n == 0 ? 0 : (all_tiles + tiles - 1) / tiles) {}

  static constexpr uint32 most = 8192;
  uint32 all_tiles;
  uint32 tiles;  // of each but the last
  uint32 count;
};

// What the kernels of topk are given.
template <typename T>
struct TopkEncoding : Encoding<T> {
  Search search;
};

template <typename T>
struct TopkDecoding : Decoding<T> {
  uint32 k;
};

// What a search has found so far.
template <typename T>
struct SearchState {
  Bits<T> threshold;  // of the candidates
  Bits<T> limit;      // the magnitude of number k, as many digits as are known
  uint32 rank;        // which one it is of those with these digits, from 1
  uint32 found;       // elements that reach the threshold
  uint32 sent;
  uint32 finite;      // whether all are
};

// Where things are in a search's memory, in bytes.
template <typename T>
struct SearchLayout {
  constexpr SearchLayout(Size n, const Search& search)
      : parts(histogram + digit_values * sizeof(uint32)),
        segments(parts + Parts(n).count * sizeof(uint64)),
        sample(segments + (search.rank == 0 ? 0 : tiles_of(n)) * sizeof(uint64)),
        values(sample + (search.rank == 0 ? 0 : topk_sample) * sizeof(T)),
        indices(values + search.capacity * sizeof(T)),
        bytes((indices + search.capacity * sizeof(uint32) + 63) / 64 * 64) {}

  static constexpr Size histogram = 64;  // behind the state: how often each value of a digit occurs
  Size parts;     // of each, how many elements are above and at the limit; then, in all parts before it
  Size segments;  // of each tile, where its candidates are in the list, and how many
  Size sample;
  Size values, indices;  // of candidates
  Size bytes;
};

}  // namespace cuda
}  // namespace gluon_gc
