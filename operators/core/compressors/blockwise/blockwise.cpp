// blockwise: blocks of elements, each rounded to evenly spaced levels of its own.
//
// For a block x with options `bits` and `symmetric`, where L = 2^(bits - 1) - 1 if symmetric, else 2^bits - 1:
//
//   symmetric        low = 0,                 step = max |x| / L,        q from -L to L
//   not symmetric    low = min x, down,       step = (max x - low) / L,  q from 0 to L
//
//   q = round((x - low) / step), ties to even
//   D(payload) = low + q step
//
// step and low are bfloat16, which has the range of a float. step is rounded up and low down, so all elements are
// between the least and the greatest level. q step is exact. All arithmetic is in T:
//
//   step = bfloat16_above((greatest - low) / L),  at least 2^-100
//   q    = rint(min(max((x - low) * (1 / step), least q), greatest q))
//
// Elements beyond 2^88 are sent as if they were 2^88. Feedback keeps the rest. The last block may be shorter: zeros
// fill it up.
//
// stochastic: q = rint(min(max((x - low) * (1 / step) + u, ...), ...)), where u is uniform between -1/2 and 1/2, so
// that the expected value of D(payload) is x. u = (r + 1/2) / 2^16 - 1/2 with 16 random bits r: the bias is at most
// 2^-17 of a step. An element that is 0 or `low` stays so.
//
// hadamard: x is rotated first, and D(payload) is rotated back: x' = H S x / n for a block of n elements, and
// D = S H D', with the Walsh-Hadamard transform H (hadamard.h) and random signs S. Then a large element does
// not decide the step of its block alone. The signs are constants, the same for all blocks, workers and steps. So error
// feedback works as without rotation.
//
// QSGD (Alistarh et al. 2017) has buckets with a scale each; THC (Li et al. 2024) and SDP4Bit (Jia et al. 2024) rotate.
//
// The payload is described in format.h. Its length depends on n and the options only.
//
// Memory: the residual (n elements).
//
// Bytes an element of float, one pass: compress reads 4; momentum and residual each read 4 and write 4 more. It writes
// bits / 8. decompress writes 4 and reads bits / 8; with `add` it reads 4 more.
#include "core/bytes.h"
#include "core/codec.h"
#include "core/compressors/blockwise/config.h"
#include "core/compressors/blockwise/hadamard.h"
#include "core/compressors/blockwise/pack.h"
#include "core/compressors/blockwise/rounding.h"
#include "core/correction.h"
#include "core/parallel.h"

namespace gluon_gc {
namespace {

using ElementBlocks = Blocks<16384>;

// Calls body(at, size) for the tiles in [begin, end). The last one may be shorter than tile_elements.
template <typename Body>
void for_each_tile(std::size_t begin, std::size_t end, Body body) {
  for (std::size_t at = begin; at < end; at += tile_elements) {
    body(at, end - at < tile_elements ? end - at : tile_elements);
  }
}

// The next tile. `quantise` prefetches it, because a loop over a tile is too short for the CPU's own prefetcher.
template <typename T>
struct NextTile {
  NextTile(const Encoding<T>& call, std::size_t at)
      : gradient(call.gradient + at),
        momentum(call.momentum ? call.earlier_momentum + at : gradient),
        residual(call.memory[0] ? call.earlier_memory[0] + at : gradient) {}

  void prefetch(std::size_t i) const {
    __builtin_prefetch(gradient + i);
    __builtin_prefetch(momentum + i);
    __builtin_prefetch(residual + i);
  }

  const T* const gradient;
  const T* const momentum;
  const T* const residual;
};

// What `quantise` keeps of the elements: nothing, their decoded values, or what these lack.
enum class Result { none, values, losses };

struct Blockwise : KeepsResidual {
  static constexpr Traits traits{true, false, false, false, false};

  Blockwise(const Options& options, std::size_t n) : KeepsResidual{n}, format(blockwise_format(options, n)) {}

  template <typename T>
  Needs needs() const {
    return {format.payload_bytes(), {n, 0}, 0, format.draws()};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    const Rotation rotation(format.block);
    bool finite = true;
    T* const memory = call.memory[0];
    const StoredResidual<T> residual{call.earlier_memory[0]};
    const StateWriter<T> writer(call.earlier_memory[0], memory);
    with_correction(call.gradient, call.gradient_scale, call.feedback(), residual, [&](const auto& correct) {
      ElementBlocks(n).run_parts(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
        Stream stream = call.stream;
        if (format.stochastic) jump(stream, begin / 64 * blockwise_group_draws);
        for_each_tile(begin, end, [&](std::size_t at, std::size_t size) {
          T buffer[tile_elements], rotated[tile_elements];
          const bool whole = size == tile_elements;
          T* const to = memory && whole ? memory + at : buffer;
          T* const p = writer.past_caches ? buffer : to;  // in place, for room in the first-level cache
          const StateWriter<T> losses(p, to);
          T* const x = format.hadamard ? rotated : p;
          const auto corrected = [=](std::size_t i, auto present) {
            const Vec<T> here = correct(at + i, present);
            store(here, p + i, All{});
            return here;
          };
          Scales<T> scales;
          if (whole && !format.hadamard) {
            measure([&](std::size_t i) { return corrected(i, All{}); }, size, scales);
          } else {
            sweep<lanes>(0, size, corrected);
            fill_up(p, size);
            measure_stored(rotation, p, size, x, scales);
          }
          if (!encode(call, rotation, at, size, p, x, losses, scales, stream)) {
            __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
          }
          if (memory && !whole) std::memcpy(memory + at, p, size * sizeof(T));
        });
      });
    });
    return finite;
  }

  // Measures the corrected elements p, or, with hadamard, these rotated to x.
  template <typename T>
  void measure_stored(const Rotation& rotation, const T* p, std::size_t size, T* x, Scales<T>& scales) const {
    if (format.hadamard) rotate(rotation, p, size, x);
    measure([=](std::size_t i) { return load(x + i, All{}); }, size, scales);
  }

  // Fills the last block up with zeros.
  template <typename T>
  void fill_up(T* p, std::size_t size) const {
    const std::size_t end = (size + lanes - 1) / lanes * lanes, padded = blocks_of(size) * format.block;
    if (end < padded) std::memset(p + end, 0, (padded - end) * sizeof(T));
  }

  template <typename T>
  void rotate(const Rotation& rotation, const T* p, std::size_t size, T* rotated) const {
    for (std::size_t i = 0; i < size; i += format.block) rotation.forward(p + i, rotated + i);
  }

  template <typename T, typename At>
  void measure(At at, std::size_t size, Scales<T>& scales) const {
    const T levels = static_cast<T>(format.most());
    format.symmetric ? gluon_gc::measure<true>(at, format.block, blocks_of(size), levels, scales)
                     : gluon_gc::measure<false>(at, format.block, blocks_of(size), levels, scales);
  }

  // Writes the payload of a tile and, with feedback, what its elements p lose. Rounds the elements x: p, or p rotated.
  // There is room for tile_elements in p and x. Returns whether p is finite.
  template <typename T>
  bool encode(const Encoding<T>& call, const Rotation& rotation, std::size_t at, std::size_t size, const T* p, T* x,
              const StateWriter<T>& losses, const Scales<T>& scales, Stream& stream) const {
    const std::size_t blocks = blocks_of(size), padded = blocks * format.block;
    const bool finite = write_scales(call.payload, at / format.block, blocks, scales);
    T offsets[tile_elements];
    for (std::size_t i = 0; format.stochastic && i < padded; i += 64) draw_offsets(stream, offsets + i);
    std::uint8_t codes[tile_elements];
    const Result result = !call.memory[0] ? Result::none : format.hadamard ? Result::values : Result::losses;
    const NextTile<T> next(call, at + tile_elements);
    quantise(result, x, offsets, losses, scales, blocks, codes, next);
    const std::size_t groups = groups_of(size);
    if (padded < groups * blockwise_group) std::memset(codes + padded, 0, groups * blockwise_group - padded);
    pack(codes, groups, format.bits, call.payload + at / blockwise_group * format.group_bytes());
    if (result != Result::values) return finite;
    for (std::size_t i = 0; i < padded; i += format.block) rotation.back(x + i);
    for (std::size_t i = 0; i < padded; i += lanes) losses(load(p + i, All{}) - load(x + i, All{}), i, All{});
    return finite;
  }

  // Writes the scales of a tile's blocks. Returns whether they are finite.
  template <typename T>
  bool write_scales(std::uint8_t* payload, std::size_t first, std::size_t blocks, const Scales<T>& scales) const {
    constexpr std::size_t size = sizeof(std::uint16_t);
    std::memcpy(payload + format.steps_at() + first * size, scales.step_bits, blocks * size);
    if (!format.symmetric) std::memcpy(payload + format.lows_at() + first * size, scales.low_bits, blocks * size);
    bool finite = true;
    for (std::size_t i = 0; i < blocks; ++i) finite &= scales.step_bits[i] != bfloat16_nan;
    return finite;
  }

  // Rounds a tile's blocks x to codes, and replaces x by the decoded values or writes the losses. Prefetches the next
  // tile.
  template <typename T>
  void quantise(Result result, T* x, const T* offsets, const StateWriter<T>& losses, const Scales<T>& scales,
                std::size_t blocks, std::uint8_t* codes, const NextTile<T>& next) const {
    const auto run = [&](auto mode) {
      constexpr Mode known = decltype(mode)::value;
      switch (result) {
        case Result::none: return quantise<known, Result::none>(x, offsets, losses, scales, blocks, codes, next);
        case Result::values: return quantise<known, Result::values>(x, offsets, losses, scales, blocks, codes, next);
        default: return quantise<known, Result::losses>(x, offsets, losses, scales, blocks, codes, next);
      }
    };
    if (format.stochastic) return run(std::integral_constant<Mode, Mode::stochastic>());
    if (scales.bounded && format.symmetric) return run(std::integral_constant<Mode, Mode::centred>());
    if (scales.bounded) return run(std::integral_constant<Mode, Mode::inside>());
    run(std::integral_constant<Mode, Mode::nearest>());
  }

  template <Mode mode, Result result, typename T>
  void quantise(T* x, const T* offsets, const StateWriter<T>& losses, const Scales<T>& scales, std::size_t blocks,
                std::uint8_t* codes, const NextTile<T>& next) const {
    const Rounding<T, mode> round(format);
    const std::size_t block = format.block;
    for (std::size_t index = 0; index < blocks; ++index) {
      const Vec<T> step = broadcast(scales.step[index]), low = broadcast(scales.low[index]),
                   inverse = broadcast(scales.inverse[index]);
      const auto round_at = [&](std::size_t i) {
        next.prefetch(i);
        const Vec<T> here = load(x + i, All{});
        Vec<T> place = (mode == Mode::centred ? here : here - low) * inverse;
        if constexpr (mode == Mode::stochastic) place = place + load(offsets + i, All{});
        const Vec<T> rounded = round(place);
        const Vec<T> product = (rounded - broadcast(round.whole)) * step;
        const Vec<T> value = mode == Mode::centred ? product : product + low;
        if constexpr (result == Result::values) store(value, x + i, All{});
        if constexpr (result == Result::losses) losses(here - value, i, All{});
        return rounded;
      };
      for (std::size_t i = index * block; i < (index + 1) * block; i += 2 * lanes) {
        const Vec<T> first = round_at(i), second = round_at(i + lanes);
        store_lowest_bytes(first, second, codes + i);
      }
    }
  }

  // The blocks, and the groups of codes, of a tile.
  std::size_t blocks_of(std::size_t size) const { return (size + format.block - 1) / format.block; }
  std::size_t groups_of(std::size_t size) const {
    const std::size_t codes = format.hadamard ? blocks_of(size) * format.block : size;
    return (codes + blockwise_group - 1) / blockwise_group;
  }

  template <typename T>
  void spoil(std::uint8_t* payload) const {
    write(payload + format.steps_at(), static_cast<std::uint16_t>(nan_bits<float> >> 16));
  }

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    bool finite = true;
    for (std::size_t i = 0; i < format.numbers(); ++i) {
      const std::uint8_t* const number = payload + format.steps_at() + i * sizeof(std::uint16_t);
      finite &= blockwise_number_is_finite(read<std::uint16_t>(number));
    }
    return finite;
  }

  template <typename T>
  bool valid(const std::uint8_t*, std::size_t capacity) const {
    return capacity >= format.payload_bytes();
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    if (call.count == 0 && !call.add) return fill_with_zeros(call.out, n, call.threads);
    const Rotation rotation(format.block);
    ElementBlocks(n).run_parts(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
      for_each_tile(begin, end, [&](std::size_t at, std::size_t size) {
        for (std::size_t k = 0; k < call.count; ++k) {
          const auto decode = call.add || k > 0 ? &Blockwise::decode<true, T> : &Blockwise::decode<false, T>;
          (this->*decode)(call.payload(k), rotation, at, size, call.out + at);
        }
      });
    });
  }

  // Decodes a tile: out = D(payload); with `add`, out += D(payload).
  template <bool add, typename T>
  void decode(const std::uint8_t* payload, const Rotation& rotation, std::size_t at, std::size_t size, T* out) const {
    std::uint8_t codes[tile_elements];
    unpack(payload + at / blockwise_group * format.group_bytes(), groups_of(size), format.bits, codes);
    const Vec<T> zero = broadcast(static_cast<T>(format.zero()));
    const std::uint8_t *const steps = payload + format.steps_at(), *const lows = payload + format.lows_at();
    T values[blockwise_most_block];
    for (std::size_t begin = 0; begin < size; begin += format.block) {
      const std::size_t end = size - begin < format.block ? size : begin + format.block;
      const std::size_t block = (at + begin) / format.block;
      const Vec<T> step = broadcast(number_at<T>(steps, block));
      const Vec<T> low = broadcast(format.symmetric ? T{0} : number_at<T>(lows, block));
      const auto value_at = [&](std::size_t i) { return (widen<T>(load(codes + i, All{})) - zero) * step + low; };
      const auto emit = [=](const Vec<T>& value, std::size_t i, auto present) {
        prefetch_ahead(out + i);
        store(add ? load(out + i, present) + value : value, out + i, present);
      };
      if (!format.hadamard) {
        sweep<lanes>(begin, end, [&](std::size_t i, auto present) { emit(value_at(i), i, present); });
        continue;
      }
      for (std::size_t i = 0; i < format.block; i += lanes) store(value_at(begin + i), values + i, All{});
      rotation.back(values);
      sweep<lanes>(begin, end, [&](std::size_t i, auto present) { emit(load(values + i - begin, All{}), i, present); });
    }
  }

  template <typename T>
  static T number_at(const std::uint8_t* numbers, std::size_t block) {
    return static_cast<T>(bfloat16_value(read<std::uint16_t>(numbers + block * sizeof(std::uint16_t))));
  }

  BlockwiseFormat format;
};

}  // namespace

GLUON_GC_COMPRESSOR(blockwise, Blockwise)

}  // namespace gluon_gc
