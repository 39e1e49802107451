// randomk: k elements drawn at random, the same ones by everybody who draws from the same stream.
//
// A payload is an array of k values of T, no indices: value i is that of the element which draw i is modulo n.
// An element that is drawn twice is in it twice, with the same value, and counts once where it is decoded; so
// the payload of a sum is the sum of the payloads. Without feedback the values are multiplied by n / k, unless
// the option scaling is off.
//
// Memory: the residual (n). Without momentum and feedback only the elements that are sent are looked at, also
// for what is not finite. With them it reads gradient, 4 bytes an element of float, and reads and writes 8 for
// each of the two, one pass; then the k elements.
#include "core/bytes.h"
#include "core/codec.h"
#include "core/compressors/draws.h"
#include "core/compressors/randomk_config.h"
#include "core/correction.h"
#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t group_elements = 64;
using ElementBlocks = Blocks<16384>;

// Updates momentum and residual (to p) in [begin, end). Returns 0, or NaN if a p is not finite.
template <typename T, typename Correct>
T correct_range(const Correct& correct, std::size_t begin, std::size_t end, T* residual) {
  Vec<T> checks = broadcast(T{0});
  sweep<group_elements>(begin, end, [=, &checks](std::size_t i, auto present) {
    Vec<T> group_checks = broadcast(T{0});
    for (std::size_t part = 0; part < group_elements / lanes; ++part) {
      const auto here = present.part(part);
      const Vec<T> p = correct(i + part * lanes, here);
      if constexpr (Correct::feedback != Feedback::none) store(p, residual + i + part * lanes, here);
      group_checks = group_checks + (p - p);
    }
    checks = checks + group_checks;
  });
  T lane[lanes], check = 0;
  store(checks, lane, All{});
  for (const T lane_check : lane) check += lane_check;
  return check;
}

struct Randomk : KeepsResidual {
  static constexpr Traits traits{true, true, true, false, false};

  Randomk(const Options& options, std::size_t n) : KeepsResidual{n}, config(options, n), k(config.k) {}

  template <typename T>
  Needs needs() const {
    return {k * sizeof(T), {n, 0}, k * sizeof(T), k};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    const FeedbackState<T> state = call.feedback();
    const Corrected<T> p(call.gradient, call.gradient_scale, state);
    const T factor = config.factor<T>(n, state.residual != nullptr);
    const ElementBlocks blocks(n);
    T checks[max_blocks];
    blocks.run_parts(call.threads, [=, &call, &checks](std::size_t part, std::size_t begin, std::size_t end) {
      T check = 0;
      if (state.momentum || state.residual) {
        const StoredResidual<T> residual{state.residual};
        check = with_correction(call.gradient, call.gradient_scale, state, residual, [=](const auto& correct) {
          return correct_range(correct, begin, end, state.residual);
        });
      }
      const auto fetch = [=](std::size_t index) { p.prefetch(index); };
      for_each_draw(call.stream, n, k, begin, end, fetch, [=, &call, &check](std::size_t i, std::size_t index) {
        const T value = p[index] * factor;
        check += value - value;
        write(call.payload + i * sizeof(T), value);
      });
      checks[part] = check;
      if (!state.residual) return;
      // Only now, so that an element that is drawn again is sent again.
      for_each_draw(call.stream, n, k, begin, end, fetch,
                    [=](std::size_t, std::size_t index) { state.residual[index] = 0; });
    });
    T check = 0;
    for (std::size_t part = 0; part < blocks.parts(call.threads); ++part) check += checks[part];
    return check == 0;
  }

  template <typename T>
  void spoil(std::uint8_t* payload) const {
    for (std::size_t i = 0; i < k; ++i) write(payload + i * sizeof(T), not_a_number<T>());
  }

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    return all_finite<T>(payload, k);
  }

  template <typename T>
  bool valid(const std::uint8_t*, std::size_t capacity) const {
    return capacity >= k * sizeof(T);
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    for (std::size_t i = 0; i < call.count; ++i) {
      if (i == 0 && !call.add) {
        put(call);
      } else {
        add(call, call.payload(i), static_cast<T*>(call.workspace));
      }
    }
  }

  template <typename T>
  void put(const Decoding<T>& call) const {
    ElementBlocks(n).run_parts(call.threads, [=, &call](std::size_t, std::size_t begin, std::size_t end) {
      T* const out = call.out;
      std::memset(out + begin, 0, (end - begin) * sizeof(T));
      const auto fetch = [=](std::size_t index) { __builtin_prefetch(out + index, 1); };
      for_each_draw(call.stream, n, k, begin, end, fetch, [=, &call](std::size_t i, std::size_t index) {
        out[index] = read<T>(call.payloads + i * sizeof(T));
      });
    });
  }

  // All sums are formed before any is written, so that those of an element that is drawn twice are the same.
  template <typename T>
  void add(const Decoding<T>& call, const std::uint8_t* payload, T* sums) const {
    T* const out = call.out;
    const auto fetch = [=](std::size_t index) { __builtin_prefetch(out + index, 1); };
    for_each_draw(call.stream, n, k, 0, n, fetch, [=](std::size_t i, std::size_t index) {
      sums[i] = out[index] + read<T>(payload + i * sizeof(T));
    });
    for_each_draw(call.stream, n, k, 0, n, fetch, [=](std::size_t i, std::size_t index) { out[index] = sums[i]; });
  }

  RandomkConfig config;
  std::size_t k;
};

}  // namespace

GLUON_GC_COMPRESSOR(randomk, Randomk)

}  // namespace gluon_gc
