// Messages for MXNet's parameter server: rows of a row_sparse array, in the float-safe framing of
// core/framing.h.
//
// A message has at most `message_rows` rows of `row_words` words. They hold its parts, one after the other:
//
//   [length of the message: uint32, only if the length of a part varies] [part 0] [part 1] ...
//
// If the length varies, only the rows that the message fills are sent.
#pragma once

#include <algorithm>
#include <cstring>
#include <sstream>

#include "../core/framing.h"
#include "operator.h"

namespace gluon_gc {

using Words = const std::uint32_t*;

constexpr std::size_t row_key_bytes = 12;  // ps-lite sends a key (8 bytes) and a length (4) with each row
constexpr std::uint32_t framed_zero = 0x40000000;

inline std::uint32_t read_length(const std::uint8_t* bytes) {
  std::uint32_t length;
  std::memcpy(&length, bytes, sizeof(length));
  return length;
}

struct Part {
  std::size_t bytes;      // the length, or if it varies, the maximum
  bool varies;
  std::size_t length_at;  // if it varies: the offset of a uint32 that counts the bytes from this offset on

  // Returns the bytes of a part that are in use. `given` bytes can be read.
  std::size_t used(const std::uint8_t* part, std::size_t given) const {
    if (!varies) return bytes;
    require(given >= length_at + sizeof(std::uint32_t), "a message ends within a part");
    const std::size_t counted = read_length(part + length_at);
    require(counted >= sizeof(std::uint32_t) && counted <= bytes - length_at,
            "a message says that it is " + std::to_string(counted) + " bytes long");
    return length_at + counted;
  }
};

// Reads the attribute `parts`, "BYTES;BYTES@N;...": the maximum length of each part. "@N" says that the length
// varies and that Part::length_at is N.
inline std::vector<Part> listed_parts(const Attributes& a) {
  std::vector<Part> parts;
  std::istringstream list(a.text("parts"));
  for (std::string item; std::getline(list, item, ';');) {
    const std::size_t at = item.find('@');
    const bool varies = at != std::string::npos;
    parts.push_back({std::stoull(item), varies, varies ? std::stoull(item.substr(at + 1)) : 0});
  }
  return parts;
}

struct Layout {
  Layout() = default;
  Layout(std::vector<Part> all, const Attributes& a)
      : parts(std::move(all)), row_words(a.size("row_words")), message_rows(a.size("message_rows")) {
    for (const Part& part : parts) {
      bytes += part.bytes;
      varies = varies || part.varies;
    }
    bytes = message_bytes(bytes, varies);
  }

  std::size_t row_bytes() const {
    return message_rows == 1 ? bytes : row_words / framing_block_words * framing_block_bytes;
  }

  // Returns the length of a message, which its first bytes state.
  std::size_t length(const std::uint8_t* message) const {
    if (!varies) return bytes;
    const std::size_t length = read_length(message);
    require(length >= message_length_bytes && length <= bytes,
            "a message says that it is " + std::to_string(length) + " bytes long");
    return length;
  }

  std::size_t rows(std::size_t length) const { return (length + row_bytes() - 1) / row_bytes(); }

  // Bytes on the wire of these rows.
  std::size_t traffic(std::size_t rows) const { return rows * (4 * row_words + row_key_bytes); }

  // The offset of the first part in a message.
  std::size_t begin() const { return message_bytes(0, varies); }

  std::vector<Part> parts;
  std::size_t row_words = 0, message_rows = 0;
  std::size_t bytes = 0;  // the maximum length of a message
  bool varies = false;
};

// Frames a message of `length` bytes in rows that are numbered from `row` on. If the length varies, the message
// must begin with room for it; it is written here. Returns the bytes on the wire.
inline std::size_t frame_message(const Layout& layout, std::uint8_t* message, std::size_t length,
                                 std::size_t row, const OpResource& resource) {
  const auto counted = static_cast<std::uint32_t>(length);
  if (layout.varies) std::memcpy(message, &counted, sizeof(counted));
  const std::size_t rows = layout.rows(length);
  mxnet::ext::MXSparse framed_rows;
  resource.alloc_sparse(&framed_rows, 0, static_cast<int>(rows));
  for (std::size_t i = 0; i < rows; ++i) framed_rows.indices[i] = static_cast<std::int64_t>(row + i);
  auto* words = static_cast<std::uint32_t*>(framed_rows.data);
  frame(message, length, words);
  std::fill(words + frame_words(length), words + rows * layout.row_words, framed_zero);
  return layout.traffic(rows);
}

// Returns the address of each row of `count` messages, null for a missing row. The rows are in the first `arrays`
// inputs.
inline std::vector<Words> present_rows(const Layout& layout, std::vector<MXTensor>& inputs,
                                std::size_t arrays, std::size_t count) {
  std::vector<Words> present(layout.message_rows * count);
  for (std::size_t i = 0; i < arrays; ++i) {
    const auto& rows = *inputs[i].data<mxnet::ext::MXSparse>();
    for (std::int64_t r = 0; r < rows.indices_len; ++r) {
      require(rows.indices[r] >= 0 && rows.indices[r] < static_cast<std::int64_t>(present.size()),
              "row " + std::to_string(rows.indices[r]) + " is out of range");
      present[rows.indices[r]] = static_cast<Words>(rows.data) + r * layout.row_words;
    }
  }
  return present;
}

inline void unframe_row(const Layout& layout, Words words, std::size_t bytes, const std::string& rank,
                 std::uint8_t* out) {
  require(words != nullptr, "a row of the message of rank " + rank + " is missing");
  require(framed(words, layout.row_words), "the row of rank " + rank + " is not a gluon_gc payload");
  unframe(words, bytes, out);
}

// Writes the message in these rows to `out` and returns its length. Errors name `rank`, the sender.
inline std::size_t unframe_message(const Layout& layout, const Words* rows, const std::string& rank,
                            std::uint8_t* out) {
  const std::size_t row_bytes = layout.row_bytes();
  unframe_row(layout, rows[0], layout.bytes < row_bytes ? layout.bytes : row_bytes, rank, out);
  const std::size_t length = layout.length(out), count = layout.rows(length);
  for (std::size_t r = 1; r < count; ++r) {
    const std::size_t left = length - r * row_bytes;
    unframe_row(layout, rows[r], left < row_bytes ? left : row_bytes, rank, out + r * row_bytes);
  }
  return length;
}

// Copies part i of a message to to[i].
inline void split_message(const Layout& layout, const std::uint8_t* message, std::size_t length,
                          const std::vector<std::uint8_t*>& to) {
  std::size_t at = layout.begin();
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    const Part& part = layout.parts[i];
    const std::size_t used = part.used(message + at, length - at);
    require(used <= length - at, "a message ends within a part");
    std::memcpy(to[i], message + at, used);
    at += used;
  }
  require(at == length, "a message is longer than its parts");
}

// The number of rows in the first `arrays` inputs.
inline std::size_t rows_in(std::vector<MXTensor>& inputs, std::size_t arrays) {
  std::size_t rows = 0;
  for (std::size_t i = 0; i < arrays; ++i) rows += inputs.at(i).data<mxnet::ext::MXSparse>()->indices_len;
  return rows;
}

}  // namespace gluon_gc
