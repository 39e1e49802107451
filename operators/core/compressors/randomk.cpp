// randomk: k elements, drawn at random. All workers and servers draw the same elements from the same stream.
//
//   payload[j] = p[draw j mod n] * factor, for j < k;  factor = n / k, or 1 with feedback or with scaling off
//   D(payload)[i] = payload[j] if draw j mod n = i for some j, else 0
//
// Stich et al. 2018 (Sparsified SGD with Memory).
//
// Payload, little-endian: k values of T, and no indices. An element that is drawn twice is in it twice, with the same
// value, and counts once in decoding. So payloads can be added element by element: D(a + b) = D(a) + D(b).
//
// Memory: the residual (n elements). Without momentum and feedback, only the k elements are read, and only they are
// checked for NaN and infinity. Otherwise, bytes an element of float, one pass: reads 4; momentum and feedback each
// read 4 and write 4 more. Then the k elements are read.
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

// Writes momentum and stores p in the residual, for elements [begin, end). Returns 0, or NaN if an element of p is NaN
// or infinite.
template <typename T, typename Correct>
T correct_range(const Correct& correct, std::size_t begin, std::size_t end, const StateWriter<T>& residual) {
  Vec<T> checks = broadcast(T{0});
  sweep<group_elements>(begin, end, [=, &checks](std::size_t i, auto present) {
    Vec<T> group_checks = broadcast(T{0});
    for (std::size_t part = 0; part < group_elements / lanes; ++part) {
      const auto here = present.part(part);
      const Vec<T> p = correct(i + part * lanes, here);
      if constexpr (Correct::has_residual) residual(p, i + part * lanes, here);
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
        const StoredResidual<T> residual{state.earlier_residual};
        check = with_correction(call.gradient, call.gradient_scale, state, residual, [=](const auto& correct) {
          return correct_range(correct, begin, end, StateWriter<T>(state.earlier_residual, state.residual));
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
      // Cleared only now, so that an element that is drawn twice is sent twice with the same value.
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

  // out = D(payload 0)
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

  // out += D(payload). Computes all sums before it writes one, so that an element that is drawn twice is added once.
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
