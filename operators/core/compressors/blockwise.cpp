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
// between the least and the greatest level. q step is exact. All arithmetic is in T, but for the step itself:
//
//   step = bfloat16_above((double)(greatest - low) / L),  at least 2^-100
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
// D = S H D', with the Walsh-Hadamard transform H (blockwise_hadamard.h) and random signs S. A single large element then
// no longer decides the step of its block. The signs are constants, the same for all blocks, workers and steps. So
// error feedback works as without rotation.
//
// QSGD (Alistarh et al. 2017) has buckets with a scale each; THC (Li et al. 2024) and SDP4Bit (Jia et al. 2024) rotate.
//
// The payload is described in blockwise_format.h. Its length depends on n and the options only.
//
// Memory: the residual (n elements).
//
// Bytes an element of float, one pass: compress reads 4; momentum and residual each read 4 and write 4 more. It writes
// bits / 8. decompress writes 4 and reads bits / 8; with `add` it reads 4 more.
#include "core/bytes.h"
#include "core/codec.h"
#include "core/compressors/blockwise_config.h"
#include "core/compressors/blockwise_hadamard.h"
#include "core/compressors/blockwise_pack.h"
#include "core/compressors/blockwise_rounding.h"
#include "core/correction.h"
#include "core/parallel.h"

namespace gluon_gc {
namespace {

using ElementBlocks = Blocks<16384>;

// The elements that are in the first-level cache together: whole blocks, and whole groups of codes.
constexpr std::size_t tile_elements = blockwise_most_block;

// Calls body(at, size) for the tiles in [begin, end). The last one may be shorter than tile_elements.
template <typename Body>
void for_each_tile(std::size_t begin, std::size_t end, Body body) {
  for (std::size_t at = begin; at < end; at += tile_elements) {
    body(at, end - at < tile_elements ? end - at : tile_elements);
  }
}

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
    const StoredResidual<T> residual{call.memory[0]};
    with_correction(call.gradient, call.gradient_scale, call.feedback(), residual, [&](const auto& correct) {
      ElementBlocks(n).run_parts(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
        Stream stream = call.stream;
        if (format.stochastic) jump(stream, begin / 64 * blockwise_group_draws);
        for_each_tile(begin, end, [&](std::size_t at, std::size_t size) {
          T p[tile_elements];
          sweep<lanes>(0, size, [&](std::size_t i, auto present) { store(correct(at + i, present), p + i, All{}); });
          if (!encode(call, rotation, at, size, p, stream)) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
        });
      });
    });
    return finite;
  }

  // Writes the payload and the residual of a tile. Returns whether its elements p are finite.
  template <typename T>
  bool encode(const Encoding<T>& call, const Rotation& rotation, std::size_t at, std::size_t size, T* p,
              Stream& stream) const {
    T* const residual = call.memory[0];
    const std::size_t blocks = blocks_of(size), padded = blocks * format.block;
    const std::size_t whole_vectors = (size + lanes - 1) / lanes * lanes;
    if (whole_vectors < padded) std::memset(p + whole_vectors, 0, (padded - whole_vectors) * sizeof(T));
    T rotated[tile_elements], offsets[tile_elements];
    if (format.hadamard) {
      std::memcpy(rotated, p, padded * sizeof(T));
      for (std::size_t i = 0; i < padded; i += format.block) rotation.forward(rotated + i);
    }
    for (std::size_t i = 0; format.stochastic && i < padded; i += 64) draw_offsets(stream, offsets + i);
    T decoded[tile_elements];
    const auto write_tile = format.stochastic ? (residual ? &Blockwise::write_blocks<true, true, T>
                                                          : &Blockwise::write_blocks<true, false, T>)
                                              : (residual ? &Blockwise::write_blocks<false, true, T>
                                                          : &Blockwise::write_blocks<false, false, T>);
    const bool finite =
        (this->*write_tile)(format.hadamard ? rotated : p, offsets, at, size, call.payload, decoded);
    if (residual) {
      for (std::size_t i = 0; format.hadamard && i < padded; i += format.block) rotation.back(decoded + i);
      sweep<lanes>(0, size, [&](std::size_t i, auto present) {
        store(load(p + i, All{}) - load(decoded + i, All{}), residual + at + i, present);
      });
    }
    return finite;
  }

  // Writes the payload of a tile's blocks x; if with_residual, also their decoded values.
  template <bool stochastic, bool with_residual, typename T>
  bool write_blocks(const T* x, const T* offsets, std::size_t at, std::size_t size, std::uint8_t* payload,
                    T* decoded) const {
    const std::size_t first = at / format.block, blocks = blocks_of(size);
    BlockwiseScale scales[tile_elements / blockwise_least_block];
    bool finite = true;
    for (std::size_t index = 0; index < blocks; ++index) {
      const T* const block = x + index * format.block;
      scales[index] = (format.symmetric ? scale_of<true, T> : scale_of<false, T>)(block, format.block, format.most());
      finite &= blockwise_number_is_finite(scales[index].step);
      write(payload + format.steps_at() + (first + index) * sizeof(std::uint16_t), scales[index].step);
      if (format.symmetric) continue;
      write(payload + format.lows_at() + (first + index) * sizeof(std::uint16_t), scales[index].low);
    }
    std::uint8_t codes[tile_elements];
    for (std::size_t index = 0; index < blocks; ++index) {
      const Rounding<T> rounding(format, scales[index]);
      const std::size_t begin = index * format.block;
      for (std::size_t i = begin; i < begin + format.block; i += lanes) {
        Vec<T> place = rounding.place(load(x + i, All{}));
        if constexpr (stochastic) place = place + load(offsets + i, All{});
        const Vec<T> rounded = rounding.rounded(place);
        store(lowest_bytes(rounded), codes + i, All{});
        if constexpr (with_residual) store(rounding.value(rounded), decoded + i, All{});
      }
    }
    const std::size_t groups = groups_of(size), end = blocks * format.block;
    if (end < groups * blockwise_group) std::memset(codes + end, 0, groups * blockwise_group - end);
    pack(codes, groups, format.bits, payload + at / blockwise_group * format.group_bytes());
    return finite;
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
    T values[blockwise_most_block];
    for (std::size_t begin = 0; begin < size; begin += format.block) {
      const std::size_t end = size - begin < format.block ? size : begin + format.block;
      const Rounding<T> rounding(format, scale_at(payload, (at + begin) / format.block));
      const auto emit = [=](const Vec<T>& value, std::size_t i, auto present) {
        store(add ? load(out + i, present) + value : value, out + i, present);
      };
      if (!format.hadamard) {
        sweep<lanes>(begin, end, [&](std::size_t i, auto present) {
          prefetch_ahead(out + i);
          emit(rounding.value_of_code(load(codes + i, All{})), i, present);
        });
        continue;
      }
      for (std::size_t i = 0; i < format.block; i += lanes) {
        store(rounding.value_of_code(load(codes + begin + i, All{})), values + i, All{});
      }
      rotation.back(values);
      sweep<lanes>(begin, end, [&](std::size_t i, auto present) { emit(load(values + i - begin, All{}), i, present); });
    }
  }

  BlockwiseScale scale_at(const std::uint8_t* payload, std::size_t block) const {
    const std::size_t at = block * sizeof(std::uint16_t);
    return {read<std::uint16_t>(payload + format.steps_at() + at),
            format.symmetric ? std::uint16_t{0} : read<std::uint16_t>(payload + format.lows_at() + at)};
  }

  BlockwiseFormat format;
};

}  // namespace

GLUON_GC_COMPRESSOR(blockwise, Blockwise)

}  // namespace gluon_gc
