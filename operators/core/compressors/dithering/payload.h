// The layout of a payload of dithering and of the workspace. For kernel sources only (see isa.h).
#pragma once

#include "core/bytes.h"
#include "core/compressors/dithering/format.h"
#include "core/stream.h"
#include "core/sums.h"

namespace gluon_gc {
namespace {

enum class Coding : std::uint32_t { fixed, elias };

// The largest size in bytes of the Elias code of a block. The code is longest if no symbol is 0.
inline std::size_t dithering_scratch_bytes(const DitheringConfig& config) {
  return config.fixed_width ? 0 : stream_block * 2 * config.planes / 8 + 8;
}

inline std::size_t dithering_blocks(std::size_t n) { return n / stream_block + (n % stream_block != 0); }

// The workspace of a call; uninitialised.
struct Workspace {
  Workspace(void* memory, std::size_t n, const DitheringConfig& config)
      : streams(static_cast<Stream*>(memory)),
        sums(reinterpret_cast<double*>(streams + stream_states(n))),
        code_bits(reinterpret_cast<std::uint32_t*>(sums + sums_bytes(n) / sizeof(double))),
        scratch(reinterpret_cast<std::uint8_t*>(code_bits + dithering_blocks(n))),
        scratch_bytes(dithering_scratch_bytes(config)) {}

  static std::size_t bytes(std::size_t n, const DitheringConfig& config) {
    const std::size_t block_bytes = sizeof(std::uint32_t) + dithering_scratch_bytes(config);
    return stream_states(n) * sizeof(Stream) + sums_bytes(n) + dithering_blocks(n) * block_bytes;
  }

  Stream* const streams;           // the state at the start of each segment
  double* const sums;              // scratch memory of the norm
  std::uint32_t* const code_bits;  // the length in bits of each block's code
  std::uint8_t* const scratch;     // the code of each block, scratch_bytes apart
  const std::size_t scratch_bytes;
};

// The parts of a payload. `Byte` is std::uint8_t, const or not.
template <typename T, typename Byte>
struct Payload {
  Payload(Byte* begin, std::size_t n, const DitheringConfig& config)
      : begin(begin),
        body(begin + dithering_header_bytes<T>),
        n(n),
        planes(static_cast<std::size_t>(config.planes)) {}

  std::uint32_t bytes() const { return read<std::uint32_t>(begin); }
  Coding coding() const { return read<Coding>(begin + sizeof(std::uint32_t)); }
  T norm() const { return read<T>(begin + norm_at); }

  // The bit planes of the sixteen elements from i.
  Byte* group(std::size_t i) const { return body + planes_bytes(i / plane_group, planes); }

  Byte* code_bits(std::size_t block) const { return body + block * sizeof(std::uint32_t); }

  Byte* const begin;
  Byte* const body;
  const std::size_t n, planes;
};

inline std::size_t whole_bytes(std::size_t bits) { return (bits + 7) / 8; }

// Replaces the bit planes by the Elias codes if these are shorter. Returns the length of the payload.
template <typename T>
std::size_t choose_coding(const Payload<T, std::uint8_t>& payload, const Workspace& workspace,
                          std::size_t fixed_bytes) {
  const std::size_t blocks = dithering_blocks(payload.n);
  std::size_t bytes = dithering_header_bytes<T> + blocks * sizeof(std::uint32_t);
  for (std::size_t block = 0; block < blocks; ++block) bytes += whole_bytes(workspace.code_bits[block]);
  if (bytes >= fixed_bytes) return fixed_bytes;
  std::uint8_t* to = payload.code_bits(blocks);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t code_bytes = whole_bytes(workspace.code_bits[block]);
    write(payload.code_bits(block), workspace.code_bits[block]);
    std::memcpy(to, workspace.scratch + block * workspace.scratch_bytes, code_bytes);
    to += code_bytes;
  }
  return bytes;
}

}  // namespace
}  // namespace gluon_gc
