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

// How many elements are rounded, and then as many of the next tile prepared.
constexpr std::size_t turn_elements = 512;

// The size of the tile at `at` of the elements up to `end`. The last one may be shorter.
constexpr std::size_t tile_size(std::size_t at, std::size_t end) {
  return end - at < tile_elements ? end - at : tile_elements;
}

// What rounding keeps of the elements: nothing, their decoded values, or what these lack.
enum class Result { none, values, losses };

struct Blockwise : KeepsResidual {
  static constexpr Traits traits{true, false, false, false, false};

  Blockwise(const Options& options, std::size_t n) : KeepsResidual{n}, format(blockwise_format(options, n)) {}

  template <typename T>
  Needs needs() const {
    return {format.payload_bytes(), {n, 0}, 0, format.draws()};
  }

  // Rounds a tile while it prepares the next one, a few blocks of each in turn: preparing keeps memory busy.
  template <typename T>
  bool compress(const Encoding<T>& call) const {
    const Rotation rotation(format.block);
    bool finite = true;
    const StoredResidual<T> residual{call.earlier_memory[0]};
    with_correction(call.gradient, call.gradient_scale, call.feedback(), residual, [&](const auto& correct) {
      ElementBlocks(n).run_parts(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
        Stream stream = call.stream;
        if (format.stochastic) jump(stream, begin / 64 * blockwise_group_draws);
        Tile<T> tiles[2];
        start(call, begin, end, tiles[0]);
        prepare(correct, rotation, 0, tiles[0].blocks, tiles[0]);
        for (std::size_t turn = 0; tiles[turn].blocks != 0; turn = 1 - turn) {
          Tile<T>&tile = tiles[turn], &next = tiles[1 - turn];
          start(call, tile.at + tile_elements, end, next);
          const bool tile_finite = encode(call, rotation, tile, stream, [&](std::size_t first, std::size_t last) {
            prepare(correct, rotation, first, last < next.blocks ? last : next.blocks, next);
          });
          if (!tile_finite) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
        }
      });
    });
    return finite;
  }

  // Sets all of a tile at `at`, but for its elements and scales. It has no blocks if `at` is not below `end`.
  template <typename T>
  void start(const Encoding<T>& call, std::size_t at, std::size_t end, Tile<T>& tile) const {
    tile.at = at;
    tile.size = at < end ? tile_size(at, end) : 0;
    tile.blocks = blocks_of(tile.size);
    tile.scales.bounded = true;
    T* const memory = call.memory[0];
    tile.residual = memory && tile.size == tile_elements ? memory + at : tile.buffer;
    const StateWriter<T> writer(call.earlier_memory[0], memory);
    tile.p = writer.past_caches ? tile.buffer : tile.residual;  // in place, for room in the first-level cache
    tile.x = format.hadamard ? tile.rotated : tile.p;
  }

  // Corrects and measures the blocks [first, last) of a tile.
  template <typename T, typename Correct>
  void prepare(const Correct& correct, const Rotation& rotation, std::size_t first, std::size_t last,
               Tile<T>& tile) const {
    T* const p = tile.p;
    const auto corrected = [&correct, p, at = tile.at](std::size_t i, auto present) {
      const Vec<T> here = correct.of_tile(at + i, present);
      store(here, p + i, All{});
      return here;
    };
    const std::size_t whole = format.hadamard ? 0 : tile.size / format.block;  // blocks that are measured at once
    measure(first, last < whole ? last : whole, tile, [&](std::size_t i) { return corrected(i, All{}); });
    for (std::size_t block = first < whole ? whole : first; block < last; ++block) {
      const std::size_t begin = block * format.block, end = begin + format.block;
      sweep<lanes>(begin, end < tile.size ? end : tile.size, corrected);
      const std::size_t filled = (tile.size + lanes - 1) / lanes * lanes;
      if (filled < end) std::memset(p + filled, 0, (end - filled) * sizeof(T));
      if (format.hadamard) rotation.forward(p + begin, tile.x + begin);
      measure(block, block + 1, tile, [x = tile.x](std::size_t i) { return load(x + i, All{}); });
    }
  }

  template <typename T, typename At>
  void measure(std::size_t first, std::size_t last, Tile<T>& tile, At at) const {
    const T levels = static_cast<T>(format.most());
    format.symmetric ? tile.template measure<true>(first, last, format.block, levels, at)
                     : tile.template measure<false>(first, last, format.block, levels, at);
  }

  // Writes the payload of a tile and, with feedback, what its elements lose. Returns whether they are finite. Calls
  // beside(first, last) after it has rounded these blocks.
  template <typename T, typename Beside>
  bool encode(const Encoding<T>& call, const Rotation& rotation, Tile<T>& tile, Stream& stream, Beside beside) const {
    const std::size_t padded = tile.blocks * format.block, groups = groups_of(tile.size);
    const bool finite = write_scales(call.payload, tile.at / format.block, tile.blocks, tile.scales);
    T offsets[tile_elements];
    for (std::size_t i = 0; format.stochastic && i < padded; i += 64) draw_offsets(stream, offsets + i);
    std::uint8_t codes[tile_elements];
    const Result result = !call.memory[0] ? Result::none : format.hadamard ? Result::values : Result::losses;
    const auto round = rounding<T>(result, tile.scales.bounded);
    const std::size_t turn = format.block < turn_elements ? turn_elements / format.block : 1;
    for (std::size_t first = 0; first < tile.blocks; first += turn) {
      const std::size_t last = tile.blocks - first < turn ? tile.blocks : first + turn;
      (this->*round)(first, last, tile, offsets, codes);
      beside(first, last);
    }
    if (padded < groups * blockwise_group) std::memset(codes + padded, 0, groups * blockwise_group - padded);
    pack(codes, groups, format.bits, call.payload + tile.at / blockwise_group * format.group_bytes());
    if (result == Result::values) {
      const StateWriter<T> losses(tile.p, tile.residual);
      for (std::size_t i = 0; i < padded; i += format.block) rotation.back(tile.x + i);
      for (std::size_t i = 0; i < padded; i += lanes) losses(load(tile.p + i, All{}) - load(tile.x + i, All{}), i, All{});
    }
    if (call.memory[0] && tile.size < tile_elements) {
      std::memcpy(call.memory[0] + tile.at, tile.residual, tile.size * sizeof(T));
    }
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

  // Rounds the blocks [first, last) of a tile to codes, and replaces their x by the decoded values or writes their
  // losses.
  template <typename T>
  using Round = void (Blockwise::*)(std::size_t first, std::size_t last, Tile<T>& tile, const T* offsets,
                                    std::uint8_t* codes) const;

  template <typename T>
  Round<T> rounding(Result result, bool bounded) const {
    const auto of = [=](auto mode) -> Round<T> {
      constexpr Mode known = decltype(mode)::value;
      switch (result) {
        case Result::none: return &Blockwise::round<known, Result::none, T>;
        case Result::values: return &Blockwise::round<known, Result::values, T>;
        default: return &Blockwise::round<known, Result::losses, T>;
      }
    };
    if (format.stochastic) return of(std::integral_constant<Mode, Mode::stochastic>());
    if (bounded && format.symmetric) return of(std::integral_constant<Mode, Mode::centred>());
    if (bounded) return of(std::integral_constant<Mode, Mode::inside>());
    return of(std::integral_constant<Mode, Mode::nearest>());
  }

  template <Mode mode, Result result, typename T>
  void round(std::size_t first, std::size_t last, Tile<T>& tile, const T* offsets, std::uint8_t* codes) const {
    const Rounding<T, mode> round(format);
    const StateWriter<T> losses(tile.p, tile.residual);
    T* const x = tile.x;
    const std::size_t size = format.block;
    for (std::size_t block = first; block < last; ++block) {
      const Vec<T> step = broadcast(tile.scales.step[block]), low = broadcast(tile.scales.low[block]),
                   inverse = broadcast(tile.scales.inverse[block]);
      const auto round_at = [&](std::size_t i) {
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
      for (std::size_t i = block * size; i < (block + 1) * size; i += 2 * lanes) {
        const Vec<T> low_half = round_at(i), high_half = round_at(i + lanes);
        store_lowest_bytes(low_half, high_half, codes + i);
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
      for (std::size_t at = begin; at < end; at += tile_elements) {
        for (std::size_t k = 0; k < call.count; ++k) {
          const auto decode = call.add || k > 0 ? &Blockwise::decode<true, T> : &Blockwise::decode<false, T>;
          (this->*decode)(call.payload(k), rotation, at, tile_size(at, end), call.out + at);
        }
      }
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
        prefetch_tiles_ahead(out + i);
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
