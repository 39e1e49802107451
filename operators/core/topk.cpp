#include "core/topk.h"

#include "core/bytes.h"
#include "core/correction.h"
#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t group_elements = 64;
using ElementBlocks = Blocks<16384>;

template <typename T>
constexpr int sign_shift = 8 * sizeof(T) - 1;

// The bits of |x|, which are in the order of |x|. All NaNs are the same one.
template <typename T>
Bits<T> magnitude_bits(Bits<T> bits) {
  const auto infinity = read_bits(static_cast<T>(__builtin_inf()));
  const auto nan = infinity | infinity >> 1;
  const Bits<T> magnitude = bits & ~(Bits<T>{1} << sign_shift<T>);
  return magnitude > infinity ? nan : magnitude;
}

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
    const int top = highest_bit(static_cast<std::conditional_t<sizeof(U) == 16, U, std::uint64_t>>(differing));
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

// The magnitude of number `rank` of a sample of p: sixteen neighbours here and there, at distances that no
// row length divides. n is more than the sample.
template <typename T, typename Correct>
Bits<T> sampled_threshold(const Correct& correct, std::size_t n, std::size_t rank) {
  constexpr std::size_t groups = topk_sample / lanes;
  const std::size_t stride = n / groups;
  Bits<T> magnitudes[topk_sample];
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t jitter = (group * 2654435761u >> 5) % (stride - lanes + 1);
    T p[lanes];
    store(correct.preview(group * stride + jitter, All{}), p, All{});
    for (std::size_t i = 0; i < lanes; ++i) {
      magnitudes[group * lanes + i] = magnitude_bits<T>(read_bits(p[i]));
    }
  }
  return select(magnitudes, topk_sample, rank);
}

// Where candidates are, one bit each, among the elements from `begin`.
struct Group {
  std::uint64_t begin, bits;
};

// Updates momentum and residual (to p), and collects the elements of at least the threshold. Returns the
// threshold, and in `found` how many there are, also if there is no room for them all.
template <typename T, typename Correct>
Bits<T> collect(const Correct& correct, std::size_t n, T* residual, const TopkPlan& plan,
                const TopkWorkspace<T>& workspace, int threads, std::size_t* found) {
  constexpr bool keeps_p = Correct::feedback != Feedback::none;
  Bits<T> threshold = plan.rank == 0 ? 0 : sampled_threshold<T>(correct, n, plan.rank);
  if (plan.rank != 0 && threshold == 0) threshold = 1;  // zeros need no room: see compress
  std::size_t total = 0;
  ElementBlocks(n).run(threads, [&](std::size_t, std::size_t block_begin, std::size_t block_end) {
    for (std::size_t begin = block_begin; begin < block_end; begin += topk_segment) {
      const std::size_t end = block_end - begin < topk_segment ? block_end : begin + topk_segment;
      T room[keeps_p ? 1 : topk_segment];
      T* const kept = keeps_p ? residual + begin : room;
      Group groups[topk_segment / group_elements];
      std::size_t group_count = 0, count = 0;
      sweep<group_elements>(begin, end, [=, &groups, &group_count](std::size_t i, auto present) {
        std::uint64_t bits = 0;
        for (std::size_t part = 0; part < group_elements / lanes; ++part) {
          const auto here = present.part(part);
          const Vec<T> p = correct(i + part * lanes, here);
          store(p, kept + (i - begin) + part * lanes, here);
          bits |= std::uint64_t{magnitude_at_least(p, threshold) & all_bits(here)} << part * lanes;
        }
        groups[group_count] = {i - begin, bits};
        group_count += bits != 0;
      });
      for (std::size_t g = 0; g < group_count; ++g) count += __builtin_popcountll(groups[g].bits);
      // Only where threads share it, since an atomic operation waits for all stores before it.
      const std::size_t place = threads > 1 ? __atomic_fetch_add(&total, count, __ATOMIC_RELAXED) : total;
      if (threads <= 1) total += count;
      workspace.segments[begin / topk_segment] = {place, count};
      if (place + count > plan.capacity) continue;
      TopkElement<T>* to = workspace.candidates + place;
      for (std::size_t g = 0; g < group_count; ++g) {
        for (std::uint64_t bits = groups[g].bits; bits != 0; bits &= bits - 1) {
          const std::size_t i = groups[g].begin + __builtin_ctzll(bits);
          *to++ = element(kept[i], begin + i);
        }
      }
    }
  });
  *found = total;
  return threshold;
}

// What is sent has magnitudes above `magnitude`, and the first `equal` elements that have just that.
template <typename T>
struct Cut {
  Bits<T> magnitude;
  std::size_t equal;
};

// The cut for k elements, whatever the values: counts magnitudes by their highest bits, then those that
// share them with number k by the next ones.
template <typename T>
Cut<T> exact_cut(const Corrected<T>& p, std::size_t n, std::size_t k) {
  constexpr int digit_bits = 11;
  Bits<T> cut = 0;
  int known = sign_shift<T>;  // bits of `cut` from here on are known
  while (known > 0) {
    const int shift = known < digit_bits ? 0 : known - digit_bits;
    std::uint32_t counts[1 << digit_bits] = {};
    for (std::size_t i = 0; i < n; ++i) {
      const Bits<T> magnitude = magnitude_bits<T>(read_bits(p[i]));
      const bool same = magnitude >> known == cut >> known;
      counts[(magnitude - cut) >> shift & ((1 << digit_bits) - 1)] += same;
    }
    std::size_t digit = (std::size_t{1} << (known - shift)) - 1;
    for (; k > counts[digit]; --digit) k -= counts[digit];
    cut |= static_cast<Bits<T>>(digit) << shift;
    known = shift;
  }
  return {cut, k};
}

// Writes the elements of a payload one after the other.
template <typename T>
struct Writer {
  Writer(void* payload, std::size_t k, T* residual)
      : indices(static_cast<char*>(payload)),
        values(indices + k * sizeof(std::uint32_t)),
        left(k),
        residual(residual) {}

  void add(TopkElement<T> element) {
    const std::uint32_t index = index_of<T>(element);
    const Bits<T> bits = value_bits<T>(element), magnitude = magnitude_bits<T>(bits);
    write(indices, index);
    write(values, bits);
    indices += sizeof(index);
    values += sizeof(bits);
    largest = magnitude > largest ? magnitude : largest;
    if (residual) residual[index] = 0;
    --left;
  }

  char* indices;
  char* values;
  std::size_t left;
  T* const residual;
  Bits<T> largest = 0;
};

}  // namespace

template <Isa isa, typename T>
T TopkKernels<isa, T>::compress(const T* gradient, std::size_t n, std::size_t k, T gradient_scale,
                                const TopkState<T>& state, const TopkPlan& plan,
                                const TopkWorkspace<T>& workspace, void* payload, int threads) {
  std::size_t found = 0;
  const auto collect_candidates = [=, &plan, &workspace, &found](const auto& correct) {
    return collect(correct, n, state.residual, plan, workspace, threads, &found);
  };
  const StoredResidual<T> residual{state.residual};
  const Bits<T> threshold = with_correction(gradient, gradient_scale, state, residual, collect_candidates);
  Writer<T> writer(payload, k, state.residual);
  if (k == 0) return 0;
  if (found >= k && found <= plan.capacity) {
    const std::size_t segments = (n + topk_segment - 1) / topk_segment;
    std::memcpy(workspace.scratch, workspace.candidates, found * sizeof(TopkElement<T>));
    const TopkElement<T> last = select(workspace.scratch, found, k);
    TopkElement<T>* const sent = workspace.scratch;
    std::size_t count = 0;
    for (std::size_t s = 0; s < segments; ++s) {
      const TopkElement<T>* const candidates = workspace.candidates + workspace.segments[s].begin;
      for (std::size_t i = 0; i < workspace.segments[s].count; ++i) {
        sent[count] = candidates[i];  // count < found <= capacity until the last one
        count += candidates[i] >= last;
      }
    }
    constexpr std::size_t ahead = 24;
    for (std::size_t i = 0; i < k; ++i) {
      if (state.residual && i + ahead < k) {
        __builtin_prefetch(state.residual + index_of<T>(sent[i + ahead]), 1);
      }
      writer.add(sent[i]);
    }
  } else {
    const Corrected<T> p(gradient, gradient_scale, state);
    // The sample was mostly zeros and all else is fewer than k, or only counting helps.
    Cut<T> cut = found < k && threshold == 1 ? Cut<T>{0, k - found} : exact_cut(p, n, k);
    for (std::size_t i = 0; i < n && writer.left != 0; ++i) {
      const T x = p[i];
      const Bits<T> magnitude = magnitude_bits<T>(read_bits(x));
      const bool equal = magnitude == cut.magnitude && cut.equal != 0;
      cut.equal -= equal;
      if (equal || magnitude > cut.magnitude) writer.add(element(x, i));
    }
  }
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
