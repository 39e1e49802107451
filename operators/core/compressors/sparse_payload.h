// Writes and reads the payloads of topk and dgc (sparse_format.h). For kernel sources only (see isa.h).
#pragma once

#include "core/compressors/indices.h"
#include "core/compressors/topk_candidates.h"

namespace gluon_gc {
namespace {

// Writes a payload. Elements are appended in ascending order of their indices.
template <typename T>
struct SparseWriter {
  SparseWriter(const SparseFormat& format, std::uint8_t* payload, std::size_t count)
      : indices(format, payload, count), values(payload + format.values_at(count)), left(count) {}

  void add(TopkElement<T> element) {
    indices.add(index_of<T>(element));
    const Bits<T> bits = value_bits<T>(element);
    if (indices.format.half_values) {
      write(values, finite_half_bits(from_bits(bits)));
    } else {
      write(values, bits);
    }
    values += indices.format.template value_bytes<T>();
    --left;
  }

  void finish() { indices.finish(); }

  IndexWriter indices;
  std::uint8_t* values;
  std::size_t left;
};

// Reads a payload.
template <typename T>
struct SparsePayload {
  SparsePayload(const SparseFormat& format, const std::uint8_t* payload, std::size_t count)
      : indices(format, payload, count, payload + format.payload_bytes<T>(count)),
        values(payload + format.values_at(count)),
        half_values(format.half_values) {}

  T value(std::size_t i) const {
    if (half_values) return static_cast<T>(half_value(read<std::uint16_t>(values + i * sizeof(std::uint16_t))));
    return read<T>(values + i * sizeof(T));
  }

  bool finite() const {
    if (!half_values) return all_finite<T>(values, indices.count);
    bool finite = true;
    for (std::size_t i = 0; i < indices.count; ++i) {
      finite &= half_is_finite(read<std::uint16_t>(values + i * sizeof(std::uint16_t)));
    }
    return finite;
  }

  void add_to(T* out) const {
    indices.for_each_group([=](std::size_t first, const std::uint32_t* group, std::size_t size) {
      for (std::size_t j = 0; j < size; ++j) out[group[j]] = out[group[j]] + value(first + j);
    });
  }

  // Replaces the elements of an array with these indices: by what the values have lost if `subtract`, else by 0.
  void clear(T* array, std::size_t n, bool subtract, int threads) const {
    const SparsePayload self = *this;
    indices.for_each_group(n, threads, [=](std::size_t first, const std::uint32_t* group, std::size_t size) {
      for (std::size_t j = 0; j < size; ++j) __builtin_prefetch(array + group[j], 1);
      for (std::size_t j = 0; j < size; ++j) {
        array[group[j]] = subtract ? array[group[j]] - self.value(first + j) : T{0};
      }
    });
  }

  const Indices indices;
  const std::uint8_t* const values;
  const bool half_values;
};

}  // namespace
}  // namespace gluon_gc
