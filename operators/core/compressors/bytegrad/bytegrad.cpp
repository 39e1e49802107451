// bytegrad: min-max quantization to 8 bits.
//
//   lo = min p,  hi = max p,  q = round((p - lo) / (hi - lo) * 255), ties to even
//   D(payload) = lo + q (hi - lo) / 255, exactly lo for q = 0 and exactly hi for q = 255
//
// Gan et al. 2021 (Bagua's ByteGrad).
//
// Payload, little-endian:
//   [its own length in bytes: uint32] [lo: T] [hi: T] [q: n bytes, absent unless lo < hi]
// The rest of the payload's memory is undefined.
//
// Memory: the residual (n elements).
//
// Bytes an element of float, two passes, because lo and hi come first: reads the gradient twice and writes the payload,
// 9 bytes. With feedback it reads the gradient once, reads the residual twice, and writes the residual twice and the
// payload: 21 bytes. Momentum adds 8 bytes with feedback, 12 without. Decoding reads 1 byte and writes 4.
#include "core/bytes.h"
#include "core/codec.h"
#include "core/compressors/bytegrad/range.h"
#include "core/compressors/bytegrad/steps.h"

namespace gluon_gc {
namespace {

using ElementBlocks = Blocks<16384>;

// The parts of a payload. `Byte` is std::uint8_t, const or not.
template <typename T, typename Byte>
struct Payload {
  std::uint32_t bytes() const { return read<std::uint32_t>(begin); }
  Range<T> range() const { return read<Range<T>>(begin + range_at); }

  // The byte of element i.
  Byte* element(std::size_t i) const { return begin + bytegrad_header_bytes<T> + i; }

  Byte* const begin;
};

// The second sweep: writes the bytes of p. With a residual, it writes e = p - D(payload).
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

// Calls step(i, present, decoded) for every sixteen elements in [begin, end).
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
    step(i, present, steps(widen<T>(load(payload.element(i), present)) + broadcast(steps.whole)));
  });
}

// out = D(payload) for elements [begin, end); with `add`, out += D(payload).
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
        call.gradient, call.gradient_scale, state, StoredResidual<T>{state.earlier_residual},
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

  // Nothing to do: lo and hi are already NaN.
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
    constexpr std::size_t tile = 4096;  // elements that stay in the cache while all payloads are added
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
