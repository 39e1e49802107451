// blocktopk: of each block of elements the k with the largest magnitude, exactly. Among equal magnitudes the lowest
// indices win. Indices are packed, and values may be rounded.
//
//   D(payload)[i] = the rounded p[i] if i is one of its block's k indices, else 0
//
// Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025: blocks of 4096, k = 64, 2-bit values.
//
// The payload and the rounding are described in format.h. Its length depends on n and the options only.
//
// Memory: the residual (n elements).
//
// Bytes an element of float, one pass: compress reads 4; momentum and residual each read 4 and write 4 more. A block is
// chosen while it is in the cache. decompress writes 4 and reads the payload; with `add` it touches only the elements
// that were sent.
#include "core/codec.h"
#include "core/compressors/blocktopk/config.h"
#include "core/compressors/blocktopk/record.h"
#include "core/compressors/blocktopk/select.h"
#include "core/correction.h"
#include "core/parallel.h"

namespace gluon_gc {
namespace {

struct Blocktopk : KeepsResidual {
  static constexpr Traits traits{};

  Blocktopk(const Options& options, std::size_t n) : KeepsResidual{n}, format(blocktopk_format(options, n)) {}

  template <typename T>
  Needs needs() const {
    return {format.payload_bytes<T>(), {n, 0}, 0, 0};
  }

  template <typename T>
  bool compress(const Encoding<T>& call) const {
    const StoredResidual<T> residual{call.earlier_memory[0]};
    const StateWriter<T> writer(call.earlier_memory[0], call.memory[0]);
    bool finite = true;
    with_correction(call.gradient, call.gradient_scale, call.feedback(), residual, [&](const auto& correct) {
      ElementBlocks(n).run_parts(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
        BlockSelection<T> selection;
        T buffers[2][blocktopk_most_block], values[blocktopk_most_block + surplus_places];
        std::uint16_t indices[blocktopk_most_block + surplus_places];
        // What the block before leaves, if it goes past the caches. It is written while this block is read: memory is
        // idle while elements are chosen.
        const T* left = nullptr;
        for (std::size_t at = begin, turn = 0; at < end; at += format.block, turn = 1 - turn) {
          const std::size_t block = at / format.block, size = format.size_of(block), kept = format.kept_of(block);
          T* const p = !call.memory[0] || writer.past_caches ? buffers[turn] : call.memory[0] + at;
          const auto write_left = [=](std::size_t i) { writer(load(left + i, All{}), at - format.block + i, All{}); };
          selection.list_candidates(size, [=, &correct](std::size_t i, auto present) {
            const Vec<T> x = correct.of_tile(at + i, present);
            store(x, p + i, present);
            if (left) write_left(i);
            return x;
          });
          for (std::size_t i = end_of_groups(size); left && i < format.block; i += lanes) write_left(i);
          selection.choose(p, size, kept, indices, values);
          const BlocktopkRecord<T, std::uint8_t> record(format, call.payload, block);
          record.write_elements(indices, values);
          for (std::size_t j = 0; j < kept; ++j) p[indices[j]] = p[indices[j]] - values[j];
          if (!record.finite()) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
          if (writer.past_caches) left = p;
        }
        if (left) {
          const std::size_t at = (end - 1) / format.block * format.block;
          sweep<lanes>(at, end, [=](std::size_t i, auto present) { writer(load(left + i - at, present), i, present); });
        }
      });
    });
    return finite;
  }

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
    for (std::size_t block = 0; block < format.blocks(); ++block) {
      finite &= BlocktopkRecord<T>(format, payload, block).finite();
    }
    return finite;
  }

  // The indices of each block must ascend and be below its size.
  template <typename T>
  bool valid(const std::uint8_t* payload, std::size_t capacity) const {
    if (capacity < format.payload_bytes<T>()) return false;
    bool valid = true;
    std::uint16_t indices[blocktopk_most_block];
    for (std::size_t block = 0; block < format.blocks(); ++block) {
      const std::size_t kept = format.kept_of(block);
      BlocktopkRecord<T>(format, payload, block).read_indices(indices);
      for (std::size_t j = 1; j < kept; ++j) valid &= indices[j - 1] < indices[j];
      valid &= kept == 0 || indices[kept - 1] < format.size_of(block);
    }
    return valid;
  }

  template <typename T>
  void decompress(const Decoding<T>& call) const {
    ElementBlocks(n).run(call.threads, [&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t at = begin; at < end; at += format.block) {
        const std::size_t block = at / format.block;
        if (!call.add) std::memset(call.out + at, 0, format.size_of(block) * sizeof(T));
        for (std::size_t i = 0; i < call.count; ++i) {
          add(BlocktopkRecord<T>(format, call.payload(i), block), format.kept_of(block), call.out + at);
        }
      }
    });
  }

  template <typename T>
  static void add(const BlocktopkRecord<T>& record, std::size_t kept, T* out) {
    std::uint16_t indices[blocktopk_most_block];
    T values[blocktopk_most_block];
    record.read_indices(indices);
    for (std::size_t j = 0; j < kept; ++j) __builtin_prefetch(out + indices[j], 1);
    record.read_values(values);
    for (std::size_t j = 0; j < kept; ++j) out[indices[j]] = out[indices[j]] + values[j];
  }

  BlocktopkFormat format;
};

}  // namespace

GLUON_GC_COMPRESSOR(blocktopk, Blocktopk)

}  // namespace gluon_gc
