// Sends elements in the order of their indices: all with a magnitude above the limit, and the first ones with a
// magnitude equal to the limit.
#pragma once

#include "cuda/compressors/topk/candidates.cuh"

namespace gluon_gc {
namespace cuda {
namespace {

// The elements of a tile that may be sent, in order: its candidates if they are listed, else all.
template <typename T, typename P>
class TileItems {
 public:
  __device__ TileItems(const SearchMemory<T>& memory, bool listed, Size t, Size n, const P& p)
      : p_(p), first_(t * tile), size_(n - first_ < tile ? n - first_ : tile) {
    if (!listed) return;
    const uint64 segment = memory.segments[t];
    values_ = memory.values + (segment >> 32);
    indices_ = memory.indices + (segment >> 32);
    size_ = static_cast<uint32>(segment);
  }

  __device__ int size() const { return static_cast<int>(size_); }
  __device__ T value(int i) const { return values_ != nullptr ? values_[i] : p_(first_ + i); }
  __device__ uint32 index(int i) const { return values_ != nullptr ? indices_[i] : static_cast<uint32>(first_) + i; }

 private:
  const P& p_;
  const Size first_;
  uint32 size_;
  const T* values_ = nullptr;
  const uint32* indices_ = nullptr;
};

// Calls step(part) for each part, on one warp of the grid.
template <typename Step>
__device__ inline void for_each_part(const Parts& parts, Step step) {
  for (uint32 part = blockIdx.x * warps + warp(); part < parts.count; part += gridDim.x * warps) step(part);
}

// Calls step(t) for each tile t of a part, in order.
template <typename Step>
__device__ inline void for_each_tile_of(const Parts& parts, uint32 part, Step step) {
  const uint32 begin = part * parts.tiles;
  for (uint32 t = begin; t < begin + parts.tiles && t < parts.all_tiles; ++t) step(Size{t});
}

// Two counts of elements in one word: above the limit in the upper half, at the limit in the lower half.
constexpr uint64 one_above = uint64{1} << 32;

__device__ inline uint32 above(uint64 counts) { return static_cast<uint32>(counts >> 32); }
__device__ inline uint32 at_limit(uint64 counts) { return static_cast<uint32>(counts); }

// The number of these elements that are sent: all above the limit, and at most `equal` at the limit.
__device__ inline uint32 sent_of(uint64 counts, uint32 equal) {
  return above(counts) + (at_limit(counts) < equal ? at_limit(counts) : equal);
}

// Writes, for each part, the counts of all parts before it. Sets state.sent, which is at most `most`.
template <typename T, typename P>
__device__ void count_parts(const Search& search, const SearchMemory<T>& memory, Size n, uint32 equal, uint32 most,
                            uint32* ticket, P p_at) {
  const Parts parts(n);
  const Bits<T> limit = memory.state->limit;
  const bool listed = are_listed(search, *memory.state, limit);
  for_each_part(parts, [&](uint32 part) {
    uint32 above_limit = 0, at_limit = 0;
    for_each_tile_of(parts, part, [&](Size t) {
      const TileItems<T, P> items(memory, listed, t, n, p_at);
#pragma unroll 4
      for (int i = lane(); i < items.size(); i += warp_lanes) {
        const Bits<T> magnitude = magnitude_bits(items.value(i));
        above_limit += magnitude > limit;
        at_limit += magnitude == limit;
      }
    });
    const uint64 counts = scan_warp(above_limit * one_above + at_limit).all;
    if (lane() == 0) memory.parts[part] = counts;
  });
  if (!last_block(ticket)) return;
  const uint32 own = (parts.count + block_threads - 1) / block_threads, begin = own * threadIdx.x;
  const uint32 end = begin + own < parts.count ? begin + own : parts.count;
  uint64 counts = 0;
#pragma unroll 4
  for (uint32 part = begin; part < end; ++part) counts += published(memory.parts + part);
  const Scan<uint64> sums = scan(counts);
  counts = sums.before;
  for (uint32 part = begin; part < end; ++part) {
    const uint64 here = published(memory.parts + part);
    memory.parts[part] = counts;
    counts += here;
  }
  const uint32 sent = sent_of(sums.all, equal);
  if (threadIdx.x == 0) memory.state->sent = sent < most ? sent : most;
}

// Calls send(place, index, value) for each element that is sent, on one thread. Needs the results of count_parts.
template <typename T, typename P, typename Send>
__device__ void for_each_sent(const Search& search, const SearchMemory<T>& memory, Size n, uint32 equal, P p_at,
                              Send send) {
  const Parts parts(n);
  const Bits<T> limit = memory.state->limit;
  const uint32 most = memory.state->sent, lower_lanes = (1u << lane()) - 1;
  const bool listed = are_listed(search, *memory.state, limit);
  for_each_part(parts, [&](uint32 part) {
    uint64 before = memory.parts[part];
    for_each_tile_of(parts, part, [&](Size t) {
      const TileItems<T, P> items(memory, listed, t, n, p_at);
      for (int row = 0; row < items.size(); row += warp_lanes) {
        const int i = row + lane();
        const bool has = i < items.size();
        const T x = has ? items.value(i) : T{0};
        const Bits<T> magnitude = magnitude_bits(x);
        const uint32 are_above = __ballot_sync(all_lanes, has && magnitude > limit);
        const uint32 are_at_limit = __ballot_sync(all_lanes, has && magnitude == limit);
        const uint64 here = before + one_above * __popc(are_above & lower_lanes) + __popc(are_at_limit & lower_lanes);
        const uint32 place = sent_of(here, equal);
        const bool chosen = magnitude > limit || (magnitude == limit && at_limit(here) < equal);
        if (has && chosen && place < most) send(place, items.index(i), x);
        before += one_above * __popc(are_above) + __popc(are_at_limit);
      }
    });
  });
}

}  // namespace
}  // namespace cuda
}  // namespace gluon_gc
