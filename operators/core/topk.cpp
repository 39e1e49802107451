#include "core/topk.h"

#include "core/bytes.h"
#include "core/correction.h"
#include "core/parallel.h"
#include "core/topk_threshold.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t group_elements = 64;

template <typename T>
TopkElement<T> element(T x, std::size_t index) {
  const Bits<T> bits = read_bits(x), magnitude = magnitude_bits<T>(bits);
  const bool minus = bits >> sign_shift<T> != 0 && x == x;
  const auto inverted = ~static_cast<std::uint32_t>(index);
  return static_cast<TopkElement<T>>(magnitude) << 33 | static_cast<TopkElement<T>>(inverted) << 1 | minus;
}

template <typename T>
std::uint32_t index_of(TopkElement<T> element) {
  return ~static_cast<std::uint32_t>(element >> 1);
}

template <typename T>
Bits<T> value_bits(TopkElement<T> element) {
  const auto sign = static_cast<Bits<T>>(element & 1) << sign_shift<T>;
  return static_cast<Bits<T>>(element >> 33) | sign;
}

inline int highest_bit(std::uint64_t x) { return 63 - __builtin_clzll(x); }
inline int highest_bit(unsigned __int128 x) {
  const auto high = static_cast<std::uint64_t>(x >> 64);
  return high != 0 ? 64 + highest_bit(high) : highest_bit(static_cast<std::uint64_t>(x));
}

// Number `rank` (from 1) of the values in descending order; they are overwritten. Each round looks at the
// eight highest bits in which those left differ, and keeps the values that have the right ones.
template <typename U>
U select(U* values, std::size_t count, std::size_t rank) {
  for (;;) {
    U differing = 0;
    for (std::size_t i = 0; i < count; ++i) differing |= values[i] ^ values[0];
    if (differing == 0) return values[0];
    const int top = highest_bit(differing);
    const int shift = top < 7 ? 0 : top - 7;
    std::size_t counts[256] = {};
    for (std::size_t i = 0; i < count; ++i) ++counts[static_cast<std::uint8_t>(values[i] >> shift)];
    std::uint8_t digit = 255;
    for (; rank > counts[digit]; --digit) rank -= counts[digit];
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const U value = values[i];
      values[kept] = value;
      kept += static_cast<std::uint8_t>(value >> shift) == digit;
    }
    count = kept;
  }
}

// Which of the elements from `begin` are candidates, one bit each.
struct Group {
  std::uint64_t begin, bits;
};

// Updates momentum and residual (to p), and collects the elements of at least the threshold. Returns how
// many there are, also if there is no room for them all.
template <typename T, typename Correct>
std::size_t collect(const Correct& correct, const Corrected<T>& p, Bits<T> threshold, std::size_t n,
                    T* residual, const TopkPlan& plan, const TopkWorkspace<T>& workspace, int threads) {
  alignas(128) std::size_t total = 0;
  ElementBlocks(n).run(threads, [=, &total](std::size_t, std::size_t block_begin, std::size_t block_end) {
    for (std::size_t begin = block_begin; begin < block_end; begin += topk_segment) {
      const std::size_t end = block_end - begin < topk_segment ? block_end : begin + topk_segment;
      Group groups[topk_segment / group_elements];
      std::size_t group_count = 0, count = 0;
      sweep<group_elements>(begin, end, [=, &groups, &group_count, &count](std::size_t i, auto present) {
        std::uint64_t bits = 0;
        for (std::size_t part = 0; part < group_elements / lanes; ++part) {
          const auto here = present.part(part);
          const Vec<T> x = correct(i + part * lanes, here);
          if constexpr (Correct::feedback != Feedback::none) store(x, residual + i + part * lanes, here);
          bits |= std::uint64_t{magnitude_at_least(x, threshold) & all_bits(here)} << part * lanes;
        }
        groups[group_count] = {i, bits};
        group_count += bits != 0;
        count += __builtin_popcountll(bits);
      });
      // Only where threads share it, since an atomic operation waits for all stores before it.
      const std::size_t place = threads > 1 ? __atomic_fetch_add(&total, count, __ATOMIC_RELAXED) : total;
      if (threads <= 1) total += count;
      workspace.segments[begin / topk_segment] = {place, count};
      if (place + count > plan.capacity) continue;
      TopkElement<T>* to = workspace.candidates + place;
      for (std::size_t g = 0; g < group_count; ++g) {
        for (std::uint64_t bits = groups[g].bits; bits != 0; bits &= bits - 1) {
          const std::size_t i = groups[g].begin + __builtin_ctzll(bits);
          *to++ = element(p[i], i);
        }
      }
    }
  });
  return total;
}

// Writes the elements of a payload one after the other.
template <typename T>
struct Writer {
  Writer(void* payload, std::size_t k)
      : indices(static_cast<char*>(payload)), values(indices + k * sizeof(std::uint32_t)), left(k) {}

  void add(TopkElement<T> element) {
    const Bits<T> bits = value_bits<T>(element), magnitude = magnitude_bits<T>(bits);
    write(indices, index_of<T>(element));
    write(values, bits);
    indices += sizeof(std::uint32_t);
    values += sizeof(bits);
    largest = magnitude > largest ? magnitude : largest;
    --left;
  }

  char* indices;
  char* values;
  std::size_t left;
  Bits<T> largest = 0;
};

// Sends the k largest of the candidates, of which there are `found`.
template <typename T>
void send_candidates(const TopkWorkspace<T>& workspace, std::size_t n, std::size_t k, std::size_t found,
                     Writer<T>& writer) {
  std::memcpy(workspace.scratch, workspace.candidates, found * sizeof(TopkElement<T>));
  const TopkElement<T> last = select(workspace.scratch, found, k);
  TopkElement<T>* const sent = workspace.scratch;
  std::size_t count = 0;
  for (std::size_t s = 0; s < (n + topk_segment - 1) / topk_segment; ++s) {
    const TopkElement<T>* const candidates = workspace.candidates + workspace.segments[s].begin;
    for (std::size_t i = 0; i < workspace.segments[s].count; ++i) {
      sent[count] = candidates[i];  // count < found <= capacity until the last one
      count += candidates[i] >= last;
    }
  }
  for (std::size_t i = 0; i < k; ++i) writer.add(sent[i]);
}

// Sends the elements with magnitudes above `limit`, and the first `equal` of those that have just that.
template <typename T>
void send_with_ties(const Corrected<T>& p, std::size_t n, Bits<T> limit, std::size_t equal, Writer<T>& writer) {
  sweep<lanes>(0, n, [=, &p, &equal, &writer](std::size_t i, auto present) {
    const Vec<T> x = p(i, present);
    const std::uint32_t larger = magnitude_at_least(x, limit + 1);
    std::uint32_t left = equal == 0 ? larger : magnitude_at_least(x, limit) & all_bits(present);
    for (; left != 0 && writer.left != 0; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      const bool is_equal = (larger >> lane & 1) == 0;
      if (is_equal && equal == 0) continue;
      equal -= is_equal;
      writer.add(element(p[i + lane], i + lane));
    }
  });
}

// Sets the residual of what was sent to 0.
template <typename T>
void clear_sent(const void* payload, std::size_t n, std::size_t k, T* residual, int threads) {
  const char* const indices = static_cast<const char*>(payload);
  const auto index = [=](std::size_t i) { return read<std::uint32_t>(indices + i * sizeof(std::uint32_t)); };
  ElementBlocks(n).run_parts(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    std::size_t first = 0, last = k;
    while (first < k && index(first) < begin) ++first;
    while (last > first && index(last - 1) >= end) --last;
    constexpr std::size_t ahead = 24;
    for (std::size_t i = first; i < last; ++i) {
      if (i + ahead < last) __builtin_prefetch(residual + index(i + ahead), 1);
      residual[index(i)] = 0;
    }
  });
}

}  // namespace

template <Isa isa, typename T>
T TopkKernels<isa, T>::compress(const T* gradient, std::size_t n, std::size_t k, T gradient_scale,
                                const TopkState<T>& state, const TopkPlan& plan,
                                const TopkWorkspace<T>& workspace, void* payload, int threads) {
  const Corrected<T> p(gradient, gradient_scale, state);
  Bits<T> threshold = 0;
  std::size_t found = 0;
  with_correction(gradient, gradient_scale, state, StoredResidual<T>{state.residual}, [&](const auto& correct) {
    if (plan.rank != 0) threshold = sampled_threshold<T>(correct, n, plan, threads);
    if (plan.rank != 0 && threshold == 0) threshold = 1;  // the sample is mostly zeros, which need no room
    found = collect(correct, p, threshold, n, state.residual, plan, workspace, threads);
  });
  const auto reaching = [=](Bits<T> magnitude) { return count_at_least(p, magnitude, n, threads); };
  const bool too_few = found < k && threshold > 1;
  if (too_few || (found > plan.capacity && reaching(threshold + 1) >= k)) {  // the sample misled
    threshold = find_threshold<T>(k, plan.capacity, reaching);
    found = collect(p, p, threshold, n, state.residual, plan, workspace, threads);
  }
  Writer<T> writer(payload, k);
  if (k == 0) return 0;
  if (found >= k && found <= plan.capacity) {
    send_candidates(workspace, n, k, found, writer);
  } else if (found < k) {
    send_with_ties<T>(p, n, 0, k - found, writer);  // all that are not zero, and zeros
  } else {
    send_with_ties<T>(p, n, threshold, k - reaching(threshold + 1), writer);
  }
  if (state.residual) clear_sent(payload, n, k, state.residual, threads);
  return read<T>(&writer.largest);
}

template <Isa isa, typename T>
bool TopkKernels<isa, T>::valid(const void* payload, std::size_t n, std::size_t k) {
  const char* const indices = static_cast<const char*>(payload);
  std::uint64_t least = 0;
  for (std::size_t i = 0; i < k; ++i) {
    const std::uint64_t index = read<std::uint32_t>(indices + i * sizeof(std::uint32_t));
    if (index < least || index >= n) return false;
    least = index + 1;
  }
  return true;
}

template <Isa isa, typename T>
void TopkKernels<isa, T>::decompress(const void* payload, std::size_t n, std::size_t k, T* out, int threads) {
  fill_with_zeros(out, n, threads);
  add(payload, k, out);
}

template <Isa isa, typename T>
void TopkKernels<isa, T>::add(const void* payload, std::size_t k, T* out) {
  const char* const indices = static_cast<const char*>(payload);
  const char* const values = indices + k * sizeof(std::uint32_t);
  for (std::size_t i = 0; i < k; ++i) {
    const auto index = read<std::uint32_t>(indices + i * sizeof(std::uint32_t));
    out[index] = out[index] + read<T>(values + i * sizeof(T));
  }
}

template struct TopkKernels<this_isa, float>;
template struct TopkKernels<this_isa, double>;

}  // namespace gluon_gc
