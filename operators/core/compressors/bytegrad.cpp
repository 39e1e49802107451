// bytegrad: one byte an element, which says where it is between the least and the largest of all.
//
// With lo = min x and hi = max x, 255 even steps lead from lo to hi. An element is the whole number of steps
// nearest to it, ties to even, and decodes to lo + q (hi - lo) / 255: to lo or hi itself at the ends.
//
// A payload is little-endian: its length in bytes, itself included, as a uint32; lo and hi as T; then, if
// lo < hi, a byte an element. What is left of the capacity has no meaning.
//
// Memory: the residual (n). Two passes, since lo and hi come first: reads gradient twice and writes the
// payload, 9 bytes an element of float. With feedback it reads gradient once, residual twice and writes
// residual twice, 21 bytes; momentum adds 8, or 12 without feedback. Decoding reads 1 and writes 4.
#include "core/bytes.h"
#include "core/codec.h"
#include "core/compressors/bytegrad_range.h"
#include "core/compressors/bytegrad_steps.h"

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

  Byte* const begin;
};

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
      if constexpr (with_residual) store(p - steps(number), residual + i, present);
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
    step(i, present, steps(widen<T>(load(payload.element(i), present)) + steps.whole));
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

struct Bytegrad : KeepsResidual {
  static constexpr Traits traits{false, false, false, true, false};

  Bytegrad(const Options&, std::size_t n) : KeepsResidual{n} {
    constexpr std::size_t most = UINT32_MAX - bytegrad_header_bytes<double>;
    if (n > most) refuse("bytegrad takes at most %zu elements, got %zu", most, n);
  }

  template <typename T>
  Needs needs() const {
    return {bytegrad_header_bytes<T> + n, {n, 0}, 0, 0};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    const FeedbackState<T> state = call.feedback();
    const Range<T> range = with_correction(
        call.gradient, call.gradient_scale, state, StoredResidual<T>{state.residual},
        [&](const auto& correct) { return corrected_range<T>(correct, n, state.residual, call.threads); });
    const Payload<T, std::uint8_t> to{call.payload};
    write(to.begin, bytegrad_payload_bytes(range, n));
    write(to.begin + range_at, range);
    const Corrected<T> corrected(call.gradient, call.gradient_scale, state);
    if (range.has_steps()) {
      const auto sweep_p = state.residual ? quantise<true, T> : quantise<false, T>;
      sweep_p(corrected, range, state.residual, n, to, call.threads);
    } else if (state.residual && range.low == range.high) {
      fill_with_zeros(state.residual, n, call.threads);
    }
    return finite<T>(call.payload);
  }

  // The least and the largest are NaNs already.
  template <typename T>
  void spoil(std::uint8_t*) const {}

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    return all_finite<T>(payload + range_at, 2);
  }

  template <typename T>
  bool valid(const std::uint8_t* payload, std::size_t capacity) const {
    if (capacity < bytegrad_header_bytes<T>) return false;
    const Payload<T, const std::uint8_t> from{payload};
    return from.bytes() == bytegrad_payload_bytes(from.range(), n) && from.bytes() <= capacity;
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    if (call.count == 0 && !call.add) return fill_with_zeros(call.out, n, call.threads);
    constexpr std::size_t tile = 4096;  // what stays in the cache while all payloads are added
    ElementBlocks(n).run(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
      for (; begin < end; begin += tile) {
        const std::size_t tile_end = end - begin < tile ? end : begin + tile;
        for (std::size_t k = 0; k < call.count; ++k) {
          const Payload<T, const std::uint8_t> payload{call.payload(k)};
          (call.add || k > 0 ? decode<true, T> : decode<false, T>)(payload, begin, tile_end, call.out);
        }
      }
    });
  }
};

}  // namespace

GLUON_GC_COMPRESSOR(bytegrad, Bytegrad)

}  // namespace gluon_gc
