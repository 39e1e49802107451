// How the GPU searches the k largest of n elements, and the memory for it. For host and device.
#pragma once

#include "core/compressors/sparse/format.h"
#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

// The limit, the k-th largest magnitude, is found by radix select: digits of 11 bits, the highest digit first.
constexpr int digit_bits = 11, digit_values = 1 << digit_bits;

template <typename T>
constexpr int magnitude_width = 8 * sizeof(T) - 1;

template <typename T>
constexpr int digit_count = (sign_shift<T> + digit_bits - 1) / digit_bits;

// Adjacent elements in the sample that the threshold is estimated from.
constexpr uint32 sample_neighbours = 8;

// TopkPlan of core/compressors/topk/plan.h, and k. All numbers are below 2^32.
struct Search {
  uint32 k;
  uint32 rank;      // 0: no sample, all elements are searched
  uint32 fold;
  uint32 capacity;  // of the list of candidates
};

// Splits the tiles of n elements into at most `most` parts. One warp sends the elements of a part.
struct Parts {
  constexpr explicit Parts(Size n)
      : all_tiles(static_cast<uint32>(tiles_of(n))),
        tiles((all_tiles + most - 1) / most),
        count(n == 0 ? 0 : (all_tiles + tiles - 1) / tiles) {}

  static constexpr uint32 most = 8192;
  uint32 all_tiles;
  uint32 tiles;  // of each part except the last
  uint32 count;
};

// The arguments of topk's kernels.
template <typename T>
struct TopkEncoding : Encoding<T> {
  Search search;
  SparseFormat format;
};

template <typename T>
struct TopkDecoding : Decoding<T> {
  uint32 k;
  SparseFormat format;
};

// The state of a search.
template <typename T>
struct SearchState {
  Bits<T> threshold;  // candidates reach it
  Bits<T> limit;      // the k-th largest magnitude; digits that are not known yet are 0
  uint32 rank;        // its rank among the magnitudes with the known digits, from 1
  uint32 found;       // elements that reach the threshold
  uint32 sent;        // elements that are sent
  uint32 finite;      // whether all elements are finite
  uint32 edges[2];    // of the lists of the payload: sparse.cuh
};

// Byte offsets in the memory of a search.
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
  Size parts;     // for each part: the elements above and at the limit; later, of all parts before it
  Size segments;  // for each tile: where its candidates begin in the list, and their number
  Size sample;
  Size values, indices;  // of the candidates
  Size bytes;            // of the whole memory
};

}  // namespace cuda
}  // namespace gluon_gc
