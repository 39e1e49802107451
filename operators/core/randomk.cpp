#include "core/randomk.h"

#include "core/bytes.h"
#include "core/correction.h"
#include "core/draws.h"
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

}  // namespace

template <Isa isa, typename T>
T RandomkKernels<isa, T>::compress(const T* gradient, std::size_t n, std::size_t k, T gradient_scale,
                                   const FeedbackState<T>& state, Stream& stream, void* payload,
                                   int threads) {
  const Corrected<T> p(gradient, gradient_scale, state);
  const T factor = state.residual || k == 0 ? T{1} : static_cast<T>(n) / static_cast<T>(k);
  char* const values = static_cast<char*>(payload);
  if (n == 0) std::memset(payload, 0, k * sizeof(T));
  const Stream start = stream;
  const ElementBlocks blocks(n);
  T checks[max_blocks];
  blocks.run_parts(threads, [=, &stream, &checks](std::size_t part, std::size_t begin, std::size_t end) {
    T check = 0;
    if (state.momentum || state.residual) {
      const StoredResidual<T> residual{state.residual};
      check = with_correction(gradient, gradient_scale, state, residual, [=](const auto& correct) {
        return correct_range(correct, begin, end, state.residual);
      });
    }
    const auto fetch = [=](std::size_t index) { p.prefetch(index); };
    Stream draws = start;
    for_each_draw(draws, n, k, begin, end, fetch, [=, &check](std::size_t i, std::size_t index) {
      const T value = p[index] * factor;
      check += value - value;
      write(values + i * sizeof(T), value);
    });
    checks[part] = check;
    if (part == 0) stream = draws;
    if (!state.residual) return;
    draws = start;  // only now, so that an element that is drawn again is sent again
    for_each_draw(draws, n, k, begin, end, fetch,
                  [=](std::size_t, std::size_t index) { state.residual[index] = 0; });
  });
  T check = 0;
  for (std::size_t part = 0; part < blocks.parts(threads); ++part) check += checks[part];
  return check;
}

template <Isa isa, typename T>
void RandomkKernels<isa, T>::decompress(const void* payload, std::size_t n, std::size_t k,
                                        const Stream& start, T* out, int threads) {
  const char* const values = static_cast<const char*>(payload);
  ElementBlocks(n).run_parts(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    std::memset(out + begin, 0, (end - begin) * sizeof(T));
    const auto fetch = [=](std::size_t index) { __builtin_prefetch(out + index, 1); };
    Stream stream = start;
    for_each_draw(stream, n, k, begin, end, fetch, [=](std::size_t i, std::size_t index) {
      out[index] = read<T>(values + i * sizeof(T));
    });
  });
}

// All sums are formed before any is written, so that those of an element that is drawn twice are the same.
template <Isa isa, typename T>
void RandomkKernels<isa, T>::add(const void* payload, std::size_t n, std::size_t k, const Stream& start,
                                 T* out, T* scratch) {
  const char* const values = static_cast<const char*>(payload);
  const auto fetch = [=](std::size_t index) { __builtin_prefetch(out + index, 1); };
  Stream stream = start;
  for_each_draw(stream, n, k, 0, n, fetch, [=](std::size_t i, std::size_t index) {
    scratch[i] = out[index] + read<T>(values + i * sizeof(T));
  });
  stream = start;
  for_each_draw(stream, n, k, 0, n, fetch, [=](std::size_t i, std::size_t index) { out[index] = scratch[i]; });
}

template struct RandomkKernels<this_isa, float>;
template struct RandomkKernels<this_isa, double>;

}  // namespace gluon_gc
