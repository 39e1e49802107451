// dithering: each element is rounded at random to one of a few levels, so that the expected value of D(payload) is p.
//
// With s = k levels and norm = max |p| or the l2 norm, an element x becomes a sign and a symbol q from 0 to s:
//
//   linear    y = |x| / norm * s,          rounded to a whole number q.
//             D = sign(x) norm q / s.
//   natural   y = |x| / norm * 2^(s - 1),  rounded to 0 (q = 0) or a power of two 2^(q - 1).
//             D = sign(x) norm 2^(q - s), or 0 if q = 0.
//
// y is rounded to one of its two neighbours, up with the probability that makes the expected value y. The sign of
// symbol 0 is plus.
//
// linear: QSGD (Alistarh et al. 2017); natural: natural dithering (Horvath et al. 2019).
//
// Payload, little-endian:
//   [its own length in bytes: uint32] [Coding: uint32] [norm: T] [symbols and signs]
// Coding::fixed: for every 16 elements bit planes of uint16: the signs, then the bits of the symbols, the lowest first.
// Coding::elias: for each block of stream_block elements a uint32, the number of bits of its code; then the codes of
//   the blocks, each of whole bytes. For each element with q > 0, the code of a block has: its distance from the last
//   such element (or from the element before the block), its sign, and q. Distance and q are Elias-delta codes
//   (elias.h).
// compress chooses the smaller of the two. With the option fixed_width it always writes Coding::fixed, and valid
// refuses Coding::elias, because a GPU cannot decode Elias codes in parallel. The rest of the payload's memory is
// undefined. n must be below 2^30.
//
// Memory: the residual (n elements).
//
// Bytes an element of float, two passes, because the norm comes first: reads the gradient twice, 8 bytes. With feedback
// it reads the gradient once, and reads and writes the residual twice: 20 bytes. Momentum adds 8 bytes with feedback,
// 12 without. The second pass is bound by its arithmetic. Half of that is for the draws, one for each element.
//
// The l2 norm of doubles overflows if an element is above 1e154. The l2 norm of floats is at most the largest float.
#include "core/codec.h"
#include "core/compressors/dithering/code.h"
#include "core/compressors/dithering/levels.h"
#include "core/compressors/dithering/payload.h"
#include "core/compressors/norms.h"
#include "core/stream_lanes.h"

namespace gluon_gc {
namespace {

// Calls body(block, begin, end) for each block of stream_block elements, on up to `threads` threads.
template <typename Body>
void for_each_block(std::size_t n, int threads, Body body) {
  Blocks<stream_block>(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    for (; begin < end; begin += stream_block) {
      body(begin / stream_block, begin, end - begin < stream_block ? end : begin + stream_block);
    }
  });
}

// The second sweep, over the elements [begin, end) of a block: writes the bit planes, and the residual if there is one.
// `known_planes` is the number of planes as a constant, or 0.
template <std::size_t known_planes, typename T, bool natural>
void quantise(const Corrected<T>& corrected, T* residual, const Quantiser<T, natural>& quantiser,
              const Levels<T>& levels, const Stream* streams, std::size_t begin, std::size_t end,
              const Payload<T, std::uint8_t>& payload) {
  const std::size_t planes = known_planes != 0 ? known_planes : payload.planes;
  LaneStates states;
  Tile tile;
  const auto quantise_group = [=, &tile, &states](std::size_t segment, std::size_t i, auto present) {
    const Vec<T> p = corrected(i, present);
    const auto draw = [=, &states](std::size_t lane) { return states.draw(segment, lane); };
    const Ints sum = quantiser(p, load_ints(tile.upper[segment]), draw);
    const std::uint32_t signs = negative(p) & any_set(sum, quantiser.whole);
    std::uint8_t* const group = payload.group(i);
    write(group, static_cast<std::uint16_t>(signs));
    for (std::size_t plane = 1; plane < planes; ++plane) {
      const Ints bit = ints(1 << (quantiser.fraction_bits + static_cast<int>(plane) - 1));
      write(group + 2 * plane, static_cast<std::uint16_t>(any_set(sum, bit)));
    }
    if (residual) {
      const Vec<T> decoded = negate(signs, levels(shift_right(sum, quantiser.fraction_bits)));
      store(p - decoded, residual + i, present);
    }
  };
  LaneStreams draws(streams);
  const std::size_t longest = end - begin < stream_segment ? end - begin : stream_segment;
  for (std::size_t offset = 0; offset < longest; offset += lanes) {
    draws.save(states);
    draws.draw(tile);
    if (end - begin == stream_block) {
      for (std::size_t segment = 0; segment < stream_lanes; ++segment) {
        // Prefetches from the next block. The CPU's prefetcher cannot follow all segments at once.
        corrected.prefetch(end + offset * stream_lanes + segment * lanes);
        quantise_group(segment, begin + segment * stream_segment + offset, All{});
      }
      continue;
    }
    for (std::size_t segment = 0; segment < stream_lanes; ++segment) {
      const std::size_t i = begin + segment * stream_segment + offset;
      if (i < end) quantise_group(segment, i, First{end - i < lanes ? end - i : lanes});
    }
  }
}

// Writes the symbols and signs. Returns the length of the payload.
template <bool natural, typename T>
std::size_t compress_body(const Corrected<T>& corrected, T* residual, T norm, const DitheringConfig& config,
                          const Workspace& workspace, const Payload<T, std::uint8_t>& payload,
                          int threads) {
  const Quantiser<T, natural> quantiser(norm, config);
  const Levels<T> levels(norm, config);
  const auto quantise_block = payload.planes == 3 ? quantise<3, T, natural> : quantise<0, T, natural>;
  for_each_block(payload.n, threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
    const Stream* const streams = workspace.streams + block * stream_lanes;
    quantise_block(corrected, residual, quantiser, levels, streams, begin, end, payload);
    if (config.fixed_width) return;
    std::uint8_t* const code = workspace.scratch + block * workspace.scratch_bytes;
    const std::size_t bits = payload.planes == 3
                                 ? encode_three_planes(payload.group(begin), end - begin, code)
                                 : encode(payload.group(begin), payload.planes, end - begin, code);
    workspace.code_bits[block] = static_cast<std::uint32_t>(bits);
  });
  const std::size_t fixed_bytes = dithering_capacity<T>(payload.n, config.planes);
  return config.fixed_width ? fixed_bytes : choose_coding(payload, workspace, fixed_bytes);
}

// Decodes bit planes: out = D(payload) for the elements [begin, end) of a block; with `add`, out += D(payload).
// `known_planes` is the number of planes as a constant, or 0.
template <std::size_t known_planes, bool add, typename T>
void decode_planes(const Payload<T, const std::uint8_t>& payload, const Levels<T>& levels, std::size_t begin,
                   std::size_t end, T* out) {
  const std::size_t planes = known_planes != 0 ? known_planes : payload.planes;
  sweep<lanes>(begin, end, [=](std::size_t i, auto present) {
    prefetch_ahead(out + i);
    const std::uint8_t* const group = payload.group(i);
    Ints symbols = ints(0);
    for (std::size_t bit = 1; bit < planes; ++bit) {
      symbols = symbols + keep(plane(group, bit), ints(1 << (bit - 1)));
    }
    Vec<T> decoded = negate(plane(group, 0), levels(symbols));
    if constexpr (add) decoded = load(out + i, present) + decoded;
    store(decoded, out + i, present);
  });
}

// The same for a block in either coding.
template <bool add, typename T>
void decode_block(const Payload<T, const std::uint8_t>& payload, const Levels<T>& levels, std::size_t block,
                  std::size_t begin, std::size_t end, T* out) {
  if (payload.coding() == Coding::fixed) {
    const auto decode_group = payload.planes == 3 ? decode_planes<3, add, T> : decode_planes<0, add, T>;
    decode_group(payload, levels, begin, end, out);
    return;
  }
  if (!add) std::memset(out + begin, 0, (end - begin) * sizeof(T));
  const std::uint8_t* code = payload.code_bits(dithering_blocks(payload.n));
  for (std::size_t before = 0; before < block; ++before) {
    code += whole_bytes(read<std::uint32_t>(payload.code_bits(before)));
  }
  const BitReader reader{code, payload.begin + payload.bytes()};
  const std::size_t bits = read<std::uint32_t>(payload.code_bits(block));
  T* const to = out + begin;
  if (levels.tabulated) {
    decode(reader, bits, [=, &levels](std::size_t i, std::uint32_t value) {
      to[i] = to[i] + levels.signed_table[value];
    });
  } else {
    decode(reader, bits, [=, &levels](std::size_t i, std::uint32_t value) {
      const T level = levels.level(value >> 1);
      to[i] = to[i] + (value & 1 ? -level : level);
    });
  }
}

struct Dithering : KeepsResidual {
  static constexpr Traits traits{true, false, false, true, false};

  Dithering(const Options& options, std::size_t n)
      : KeepsResidual{n},
        config{static_cast<std::uint32_t>(options.count("k")),
               plane_count(static_cast<std::uint32_t>(options.count("k"))), options.is("partition", "natural"),
               options.is("normalize", "l2"), options.flag("fixed_width")} {
    // natural: the symbols fit into a table. linear: as a float, y has at least one fractional bit.
    const std::size_t levels = options.count("k"), most = config.natural ? 31 : (1 << 23) - 1;
    if (levels < 1 || levels > most) refuse("k must be a whole number from 1 to %zu, got %zu", most, levels);
    if (n >= 1u << 30) refuse("dithering takes fewer than 2^30 elements, got %zu", n);
  }

  template <typename T>
  Needs needs() const {
    return {dithering_capacity<T>(n, config.planes), {n, 0}, Workspace::bytes(n, config), n};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    const FeedbackState<T> state = call.feedback();
    const Workspace workspace(call.workspace, n, config);
    draw_segments(call.stream, n, workspace.streams);
    const T norm = with_correction(
        call.gradient, call.gradient_scale, state, StoredResidual<T>{state.earlier_residual}, [&](const auto& correct) {
          return config.l2 ? l2_norm(correct, n, state.residual, workspace.sums, call.threads)
                           : largest_magnitude(correct, n, state.residual, call.threads);
        });
    const Corrected<T> corrected(call.gradient, call.gradient_scale, state);
    const Payload<T, std::uint8_t> to(call.payload, n, config);
    const std::size_t fixed_bytes = dithering_capacity<T>(n, config.planes);
    std::memset(to.begin + fixed_bytes - 2, 0, 2);  // perhaps padding to a multiple of 4
    const auto compress_p = config.natural ? compress_body<true, T> : compress_body<false, T>;
    const std::size_t bytes = compress_p(corrected, state.residual, norm, config, workspace, to, call.threads);
    write(to.begin, static_cast<std::uint32_t>(bytes));
    write(to.begin + sizeof(std::uint32_t), bytes < fixed_bytes ? Coding::elias : Coding::fixed);
    write(to.begin + norm_at, norm);
    return is_finite(norm);
  }

  template <typename T>
  void spoil(std::uint8_t* payload) const {
    write(payload + norm_at, not_a_number<T>());
  }

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    return is_finite(read<T>(payload + norm_at));
  }

  // Decodes an Elias code to check it.
  template <typename T>
  bool valid(const std::uint8_t* payload, std::size_t capacity) const {
    const Payload<T, const std::uint8_t> from(payload, n, config);
    if (capacity < dithering_header_bytes<T> || from.bytes() > capacity) return false;
    if (from.coding() == Coding::fixed) return from.bytes() == dithering_capacity<T>(n, config.planes);
    const std::size_t blocks = dithering_blocks(n);
    const std::uint8_t* code = from.code_bits(blocks);
    const std::uint8_t* const end = from.begin + from.bytes();
    if (from.coding() != Coding::elias || config.fixed_width || from.bytes() < code - from.begin) return false;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t bits = read<std::uint32_t>(from.code_bits(block)), left = n - block * stream_block;
      const std::size_t count = left < stream_block ? left : stream_block;
      if (whole_bytes(bits) > static_cast<std::size_t>(end - code)) return false;
      if (!is_code({code, end}, bits, count, config.levels)) return false;
      code += whole_bytes(bits);
    }
    return code == end;
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    for_each_block(n, call.threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
      if (call.count == 0 && !call.add) std::memset(call.out + begin, 0, (end - begin) * sizeof(T));
      for (std::size_t k = 0; k < call.count; ++k) {
        const Payload<T, const std::uint8_t> payload(call.payload(k), n, config);
        const Levels<T> levels(payload.norm(), config);
        const auto decode = call.add || k > 0 ? decode_block<true, T> : decode_block<false, T>;
        decode(payload, levels, block, begin, end, call.out);
      }
    });
  }

  DitheringConfig config;
};

}  // namespace

GLUON_GC_COMPRESSOR(dithering, Dithering)

}  // namespace gluon_gc
