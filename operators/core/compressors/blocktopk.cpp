// blocktopk: of each block of elements the k with the largest magnitude, exactly. Among equal magnitudes the lowest
// indices win. Indices are packed, and values may be rounded.
//
//   D(payload)[i] = the rounded p[i] if i is one of its block's k indices, else 0
//
// Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025: blocks of 4096, k = 64, 2-bit values.
//
// The payload and the rounding are described in blocktopk_format.h. Its length depends on n and the options only.
//
// Memory: the residual (n elements).
//
// Bytes an element of float, one pass: compress reads 4; momentum and residual each read 4 and write 4 more. A block is
// chosen while it is in the cache. decompress writes 4 and reads the payload; with `add` it touches only the elements
// that were sent.
#include "core/bytes.h"
#include "core/codec.h"
#include "core/compressors/blocktopk_config.h"
#include "core/compressors/blocktopk_select.h"
#include "core/compressors/packed_writer.h"
#include "core/correction.h"
#include "core/parallel.h"
#include "core/sums.h"

namespace gluon_gc {
namespace {

// The sum of magnitude(x) over a block's values, in float64: value j is added to chain j mod 32, then the chains are
// added in the order of sum_tree.h.
template <typename T, typename Magnitude>
double sum_of(const T* values, std::size_t count, Magnitude magnitude) {
  double chain[sum_chains] = {};
  for (std::size_t j = 0; j < count; ++j) chain[j % sum_chains] += static_cast<double>(magnitude(values[j]));
  return butterfly(chain);
}

// The levels of a block's values, and the mean magnitude that separates the two levels of 2 bits.
template <typename T>
BlocktopkLevels<T> levels_of(const T* values, std::size_t count, int bits, T& split) {
  if (bits != 2) {
    Bits<T> largest = 0;
    for (std::size_t j = 0; j < count; ++j) {
      const Bits<T> magnitude = bits_of(absolute(values[j]));
      largest = magnitude > largest ? magnitude : largest;
    }
    return {bits, from_bits(largest), 0};
  }
  split = blocktopk_mean<T>(sum_of(values, count, [](T x) { return absolute(x); }), count);
  std::size_t high = 0;
  for (std::size_t j = 0; j < count; ++j) high += absolute(values[j]) >= split;
  const double low_sum = sum_of(values, count, [=](T x) { return absolute(x) >= split ? T{0} : absolute(x); });
  const double high_sum = sum_of(values, count, [=](T x) { return absolute(x) >= split ? absolute(x) : T{0}; });
  return {bits, blocktopk_mean<T>(low_sum, count - high), blocktopk_mean<T>(high_sum, high)};
}

struct Blocktopk : KeepsResidual {
  static constexpr Traits traits{};

  Blocktopk(const Options& options, std::size_t n) : KeepsResidual{n}, format(blocktopk_format(options, n)) {}

  template <typename T>
  Needs needs() const {
    return {format.payload_bytes<T>(), {n, 0}, 0, 0};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    const StoredResidual<T> residual{call.memory[0]};
    bool finite = true;
    with_correction(call.gradient, call.gradient_scale, call.feedback(), residual, [&](const auto& correct) {
      ElementBlocks(n).run_parts(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
        BlockSelection<T> selection;
        T buffer[blocktopk_most_block];
        std::uint16_t indices[blocktopk_most_block];
        for (std::size_t at = begin; at < end; at += format.block) {
          const std::size_t index = at / format.block, size = format.size_of(index), kept = format.kept_of(index);
          T* const p = call.memory[0] != nullptr ? call.memory[0] + at : buffer;
          selection.sweep_block(correct, at, size, p);
          selection.choose(p, size, kept, indices);
          const bool block_finite = write_record(call.payload + format.record_at<T>(index), p, indices, kept);
          if (!block_finite) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
        }
      });
    });
    return finite;
  }

  // Writes the record of a block. Replaces its kept elements by their residuals. Returns whether they are finite.
  template <typename T>
  bool write_record(std::uint8_t* record, T* p, const std::uint16_t* indices, std::size_t kept) const {
    PackedWriter packed{record + format.indices_at<T>()};
    for (std::size_t j = 0; j < kept; ++j) packed.add(indices[j], format.index_bits);
    packed.finish();
    T values[blocktopk_most_block];
    for (std::size_t j = 0; j < kept; ++j) values[j] = with_one_nan(p[indices[j]]);
    std::uint8_t* const to = record + format.values_at<T>(kept);
    switch (format.value_bits) {
      case 32: std::memcpy(to, values, kept * sizeof(T)); break;
      case 16:
        for (std::size_t j = 0; j < kept; ++j) write(to + j * sizeof(std::uint16_t), finite_half_bits(values[j]));
        break;
      default: write_levels(record, to, values, kept);
    }
    T check = 0;
    const Decoder<T> decoder(*this, record, kept);
    for (std::size_t j = 0; j < kept; ++j) {
      const T decoded = decoder.value(j);
      p[indices[j]] = values[j] - decoded;
      check += (values[j] - values[j]) + (decoded - decoded);
    }
    return check == 0;
  }

  template <typename T>
  void write_levels(std::uint8_t* record, std::uint8_t* to, const T* values, std::size_t kept) const {
    T split = 0;
    const BlocktopkLevels<T> levels = levels_of(values, kept, format.value_bits, split);
    write(record, levels.scale);
    if (format.scales() == 2) write(record + sizeof(T), levels.high);
    PackedWriter packed{to};
    for (std::size_t j = 0; j < kept; ++j) packed.add(levels.number(values[j], split), format.value_bits);
    packed.finish();
  }

  // Reads a record.
  template <typename T>
  struct Decoder {
    Decoder(const Blocktopk& codec, const std::uint8_t* record, std::size_t kept)
        : indices(record + codec.format.indices_at<T>()),
          values(record + codec.format.values_at<T>(kept)),
          index_bits(codec.format.index_bits),
          levels{codec.format.value_bits, 0, 0} {
      if (codec.format.scales() != 0) levels.scale = read<T>(record);
      if (codec.format.scales() == 2) levels.high = read<T>(record + sizeof(T));
    }

    std::uint32_t index(std::size_t j) const { return packed_number(indices, j, index_bits); }

    T value(std::size_t j) const {
      if (levels.bits == 32) return read<T>(values + j * sizeof(T));
      if (levels.bits == 16) return half_value(read<std::uint16_t>(values + j * sizeof(std::uint16_t)));
      const std::size_t bit = j * levels.bits;
      return levels.value(values[bit / 8] >> bit % 8 & ((1u << levels.bits) - 1));
    }

    const std::uint8_t *indices, *values;
    int index_bits;
    BlocktopkLevels<T> levels;
  };

  template <typename T>
  void spoil(std::uint8_t* payload) const {
    if (format.scales() != 0) {
      for (std::size_t s = 0; s < format.scales(); ++s) write(payload + s * sizeof(T), not_a_number<T>());
    } else if (format.value_bits == 16) {
      write(payload + format.values_at<T>(format.kept_of(0)), half_bits(not_a_number<float>()));
    } else {
      write(payload + format.values_at<T>(format.kept_of(0)), not_a_number<T>());
    }
  }

  template <typename T>
  bool finite(const std::uint8_t* payload) const {
    bool finite = true;
    for (std::size_t index = 0; index < format.blocks(); ++index) {
      const std::uint8_t* const record = payload + format.record_at<T>(index);
      const std::size_t kept = format.kept_of(index);
      const std::uint8_t* const values = record + format.values_at<T>(kept);
      if (format.value_bits == 32) {
        finite &= all_finite<T>(values, kept);
      } else if (format.value_bits == 16) {
        for (std::size_t j = 0; j < kept; ++j) finite &= half_is_finite(read<std::uint16_t>(values + j * 2));
      } else {
        finite &= all_finite<T>(record, format.scales());
      }
    }
    return finite;
  }

  // The indices of each block must ascend and be below its size.
  template <typename T>
  bool valid(const std::uint8_t* payload, std::size_t capacity) const {
    if (capacity < format.payload_bytes<T>()) return false;
    bool valid = true;
    for (std::size_t index = 0; index < format.blocks(); ++index) {
      const std::uint8_t* const list = payload + format.record_at<T>(index) + format.indices_at<T>();
      std::uint32_t least = 0;
      for (std::size_t j = 0; j < format.kept_of(index); ++j) {
        const std::uint32_t i = packed_number(list, j, format.index_bits);
        valid &= i >= least;
        least = i + 1;
      }
      valid &= least <= format.size_of(index);
    }
    return valid;
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    ElementBlocks(n).run(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t at = begin; at < end; at += format.block) {
        const std::size_t index = at / format.block;
        T* const out = call.out + at;
        if (!call.add) std::memset(out, 0, format.size_of(index) * sizeof(T));
        for (std::size_t i = 0; i < call.count; ++i) {
          add(call.payload(i) + format.record_at<T>(index), format.kept_of(index), out);
        }
      }
    });
  }

  template <typename T>
  void add(const std::uint8_t* record, std::size_t kept, T* out) const {
    const Decoder<T> decoder(*this, record, kept);
    for (std::size_t j = 0; j < kept; ++j) {
      T& at = out[decoder.index(j)];
      at = at + decoder.value(j);
    }
  }

  BlocktopkFormat format;
};

}  // namespace

GLUON_GC_COMPRESSOR(blocktopk, Blocktopk)

}  // namespace gluon_gc
