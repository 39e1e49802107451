#include "core/bytegrad.h"

#include "core/bytegrad_range.h"
#include "core/bytegrad_steps.h"
#include "core/bytes.h"

namespace gluon_gc {
namespace {

using ElementBlocks = Blocks<16384>;

// Where things are in a payload. `Byte` is const or not.
template <typename T, typename Byte>
struct Payload {
  std::uint32_t bytes() const { return read<std::uint32_t>(begin); }
  Range<T> range() const { return read<Range<T>>(begin + range_at); }

  // The byte of element i.
  Byte* element(std::size_t i) const { return begin + bytegrad_header_bytes<T> + i; }

  static constexpr std::size_t range_at = sizeof(std::uint32_t);

  Byte* const begin;
};

// The length of a payload of n elements.
template <typename T>
std::uint32_t payload_bytes(const Range<T>& range, std::size_t n) {
  return static_cast<std::uint32_t>(bytegrad_header_bytes<T> + (range.has_steps() ? n : 0));
}

// The second sweep: writes the bytes of p and, if there is a residual, what they lose.
template <bool with_residual, typename T>
void quantise(const Corrected<T>& corrected, const Range<T>& range, T* residual, std::size_t n,
              const Payload<T, std::uint8_t>& payload, int threads) {
  const Steps<T> steps(range);
  ElementBlocks(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    sweep<lanes>(begin, end, [=](std::size_t i, auto present) {
      prefetch_ahead(with_residual ? residual + i : corrected.gradient + i);
      const Vec<T> p = corrected(i, present);
      const Vec<T> number = steps.nearest(p);
      store(lowest_bytes(number), payload.element(i), present);
      if constexpr (with_residual) store(p - steps(number - steps.whole), residual + i, present);
    });
  });
}

// Calls step(i, lanes, decoded) for every sixteen elements from `begin` to `end`.
template <typename T, typename Step>
void for_each_decoded(const Payload<T, const std::uint8_t>& payload, std::size_t begin, std::size_t end,
                      Step step) {
  const Range<T> range = payload.range();
  if (!range.has_steps()) {
    const Vec<T> low = broadcast(range.low);
    sweep<lanes>(begin, end, [=](std::size_t i, auto present) { step(i, present, low); });
    return;
  }
  const Steps<T> steps(range);
  sweep<lanes>(begin, end, [=](std::size_t i, auto present) {
    step(i, present, steps(widen<T>(load(payload.element(i), present))));
  });
}

// out = D(payload) for elements from `begin` to `end`, or with `add` out += D(payload).
template <bool add, typename T>
void decode(const Payload<T, const std::uint8_t>& payload, std::size_t begin, std::size_t end, T* out) {
  for_each_decoded(payload, begin, end, [=](std::size_t i, auto present, const Vec<T>& decoded) {
    prefetch_ahead(out + i);
    if constexpr (add) {
      store(load(out + i, present) + decoded, out + i, present);
    } else {
      store(decoded, out + i, present);
    }
  });
}

}  // namespace

template <Isa isa, typename T>
T BytegradKernels<isa, T>::compress(const T* gradient, std::size_t n, T gradient_scale,
                                    const FeedbackState<T>& state, void* payload, int threads) {
  const Range<T> range = with_correction(
      gradient, gradient_scale, state, StoredResidual<T>{state.residual},
      [=](const auto& correct) { return corrected_range<T>(correct, n, state.residual, threads); });
  const Payload<T, std::uint8_t> to{static_cast<std::uint8_t*>(payload)};
  write(to.begin, payload_bytes(range, n));
  write(to.begin + to.range_at, range);
  const Corrected<T> corrected(gradient, gradient_scale, state);
  if (range.has_steps()) {
    const auto sweep_p = state.residual ? quantise<true, T> : quantise<false, T>;
    sweep_p(corrected, range, state.residual, n, to, threads);
  } else if (state.residual && range.low == range.high) {
    fill_with_zeros(state.residual, n, threads);
  }
  return -range.low > range.high ? -range.low : range.high;
}

template <Isa isa, typename T>
bool BytegradKernels<isa, T>::valid(const void* payload, std::size_t capacity, std::size_t n) {
  if (capacity < bytegrad_header_bytes<T>) return false;
  const Payload<T, const std::uint8_t> from{static_cast<const std::uint8_t*>(payload)};
  return from.bytes() == payload_bytes(from.range(), n) && from.bytes() <= capacity;
}

template <Isa isa, typename T>
void BytegradKernels<isa, T>::sum(const void* payloads, std::size_t stride_bytes, std::size_t count,
                                  std::size_t n, bool add, T* out, int threads) {
  if (count == 0 && !add) return fill_with_zeros(out, n, threads);
  const auto* const first = static_cast<const std::uint8_t*>(payloads);
  constexpr std::size_t tile = 4096;  // what stays in the cache while all payloads are added
  ElementBlocks(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    for (; begin < end; begin += tile) {
      const std::size_t tile_end = end - begin < tile ? end : begin + tile;
      for (std::size_t k = 0; k < count; ++k) {
        const Payload<T, const std::uint8_t> payload{first + k * stride_bytes};
        (add || k > 0 ? decode<true, T> : decode<false, T>)(payload, begin, tile_end, out);
      }
    }
  });
}

template struct BytegradKernels<this_isa, float>;
template struct BytegradKernels<this_isa, double>;

}  // namespace gluon_gc
