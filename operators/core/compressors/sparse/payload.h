// Writes and reads the payloads of topk and dgc (format.h). For kernel sources only (see isa.h).
#pragma once

#include "core/codec.h"
#include "core/compressors/sparse/indices.h"
#include "core/compressors/topk/candidates.h"

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
      add_group(first, group, size, out);
    });
  }

  // Sets n elements to what the payload decodes to. One thread clears each part of them when it adds to it, because the
  // part is then in the cache.
  void write_to(T* out, std::size_t n, int threads) const {
    if (threads > 1) {
      fill_with_zeros(out, n, threads);
      return add_to(out);
    }
    std::size_t clear = 0;  // elements that are cleared
    indices.for_each_group([=, &clear](std::size_t first, const std::uint32_t* group, std::size_t size) {
      const std::size_t end = std::size_t{group[size - 1]} + 1;
      std::memset(out + clear, 0, (end - clear) * sizeof(T));
      clear = end;
      add_group(first, group, size, out);
    });
    if (clear < n) std::memset(out + clear, 0, (n - clear) * sizeof(T));
  }

  void add_group(std::size_t first, const std::uint32_t* group, std::size_t size, T* out) const {
    for (std::size_t j = 0; j < size; ++j) __builtin_prefetch(out + group[j], 1);
    T here[Indices::group_room];
    read_values(first, size, here);
    for (std::size_t j = 0; j < size; ++j) out[group[j]] = out[group[j]] + here[j];
  }

  // Reads the values of elements first, ..., first + size - 1.
  void read_values(std::size_t first, std::size_t size, T* to) const {
    if (!half_values) return void(std::memcpy(to, values + first * sizeof(T), size * sizeof(T)));
    for (std::size_t j = 0; j < size; ++j) to[j] = value(first + j);
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

// Sets n elements to zero, past the caches.
template <typename T>
void stream_zeros(T* out, std::size_t n, int threads) {
  Blocks<16384>(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    const std::size_t to_line = -reinterpret_cast<std::uintptr_t>(out + begin) % sizeof(Vec<T>) / sizeof(T);
    const std::size_t aligned = end - begin < to_line ? end : begin + to_line;
    std::memset(out + begin, 0, (aligned - begin) * sizeof(T));
    sweep<lanes>(aligned, end, [=](std::size_t i, auto present) {
      stream(broadcast(T{0}), out + i, present);
    });
  });
}

// decompress of topk and dgc. read(payload) returns a SparsePayload. A single large payload is an average that has
// arrived: its elements are next read when the whole model has arrived, and are out of the caches then.
template <typename T, typename Read>
void decode_sparse(const Decoding<T>& call, std::size_t n, Read read) {
  constexpr std::size_t large = 65536;
  if (call.count == 1 && !call.add && n >= large) {
    stream_zeros(call.out, n, call.threads);
    return read(call.payload(0)).add_to(call.out);
  }
  if (call.count == 0 && !call.add) fill_with_zeros(call.out, n, call.threads);
  for (std::size_t i = 0; i < call.count; ++i) {
    const auto payload = read(call.payload(i));
    call.add || i > 0 ? payload.add_to(call.out) : payload.write_to(call.out, n, call.threads);
  }
}

}  // namespace
}  // namespace gluon_gc
