// The float-safe framing as MXNet operators, from bytes to rows of a row_sparse array and back: what
// travels through MXNet's parameter server (see core/framing.h).
//
// A message is its parts, one after the other, in `message_rows` rows of `row_words` words. The attribute
// `parts` lists the most bytes of each, with "@N" if its length varies: what counts its bytes from offset N
// on, as a uint32, is there. A message with such a part starts with its own length, as a uint32, and only
// the rows that it needs travel. With `counted` the last input is an array of float64, whose element
// `count_at` counts bytes on the wire.
//
// gluon_gc_frame(part (bytes,), ...[, counts]) -> row_sparse (rows, row_words): the message from row `row` on
// gluon_gc_rows_left(row_sparse) -> int64 (count, message_rows - 1): the rows that the first `count` messages
//     need beside the first of each, repeated
// gluon_gc_keep_rows(row_sparse, row_sparse with all rows) -> int64 (1,): how many rows of the former were
//     copied to the latter
// gluon_gc_unframe(row_sparse (rows, row_words)[, another][, counts]) -> (count, bytes), ...: each part of the
//     first `count` messages
#include "../core/framing.h"

#include <cstring>
#include <sstream>

#include "operator.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Words = const std::uint32_t*;

constexpr std::size_t row_key_bytes = 12;  // ps-lite sends a key and a length with each row
constexpr std::uint32_t framed_zero = 0x40000000;

std::uint32_t read_length(const std::uint8_t* bytes) {
  std::uint32_t length;
  std::memcpy(&length, bytes, sizeof(length));
  return length;
}

struct Part {
  std::size_t bytes;
  bool varies;
  std::size_t length_at;

  // How much of a part, of which `given` bytes are there, is in use.
  std::size_t used(const std::uint8_t* part, std::size_t given) const {
    if (!varies) return bytes;
    require(given >= length_at + sizeof(std::uint32_t), "a message ends within a part");
    const std::size_t counted = read_length(part + length_at);
    require(counted >= sizeof(std::uint32_t) && counted <= bytes - length_at,
            "a message says that it is " + std::to_string(counted) + " bytes long");
    return length_at + counted;
  }
};

std::vector<Part> listed_parts(const Attributes& a) {
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
  explicit Layout(const Attributes& a)
      : parts(listed_parts(a)), row_words(a.size("row_words")), message_rows(a.size("message_rows")) {
    for (const Part& part : parts) {
      bytes += part.bytes;
      varies = varies || part.varies;
    }
    if (varies) bytes += sizeof(std::uint32_t);
  }

  std::size_t row_bytes() const { return message_rows == 1 ? bytes : row_words / 16 * 60; }

  // The length of a message that starts with these bytes.
  std::size_t length(const std::uint8_t* message) const {
    if (!varies) return bytes;
    const std::size_t length = read_length(message);
    require(length >= sizeof(std::uint32_t) && length <= bytes,
            "a message says that it is " + std::to_string(length) + " bytes long");
    return length;
  }

  std::size_t rows(std::size_t length) const { return (length + row_bytes() - 1) / row_bytes(); }

  std::size_t traffic(std::size_t rows) const { return rows * (4 * row_words + row_key_bytes); }

  std::vector<Part> parts;
  std::size_t row_words, message_rows;
  std::size_t bytes = 0;
  bool varies = false;
};

bool counted(const Attributes& a) { return a.flag("counted"); }

void count(const Attributes& a, std::vector<MXTensor>& inputs, std::size_t bytes) {
  if (!counted(a)) return;
  const std::size_t at = a.size("count_at");
  require(at < static_cast<std::size_t>(inputs.back().size()), "count_at is beyond the counts");
  inputs.back().data<double>()[at] += static_cast<double>(bytes);
}

template <int Type>
MXReturnValue output_type(const Map&, std::vector<int>*, std::vector<int>* out) {
  for (int& type : *out) type = Type;
  return mxnet::ext::MX_SUCCESS;
}

template <int Storage>
MXReturnValue output_storage(const Map&, std::vector<int>*, std::vector<int>* out) {
  for (int& storage : *out) storage = Storage;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue frame_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    const Attributes a(map);
    *inputs = static_cast<int>(listed_parts(a).size()) + counted(a);
    *outputs = 1;
  });
}

MXReturnValue frame_mutates(const Map& map, std::vector<int>* indices) {
  return guarded([&] {
    const Attributes a(map);
    if (counted(a)) indices->push_back(static_cast<int>(listed_parts(a).size()));
  });
}

MXReturnValue frame_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    const std::vector<Part> parts = listed_parts(a);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      require(elements(in->at(i)) == parts[i].bytes, "a payload has another length than its part");
    }
    out->at(0) = {static_cast<unsigned int>(a.size("rows")),
                  static_cast<unsigned int>(a.size("row_words"))};
  });
}

// Puts the parts one after the other. Returns their length.
std::size_t join_parts(const Layout& layout, std::vector<MXTensor>& inputs, std::uint8_t* message) {
  std::size_t length = layout.varies ? sizeof(std::uint32_t) : 0;
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    const auto* part = inputs[i].data<std::uint8_t>();
    const std::size_t used = layout.parts[i].used(part, layout.parts[i].bytes);
    std::memcpy(message + length, part, used);
    length += used;
  }
  const auto counted = static_cast<std::uint32_t>(length);
  if (layout.varies) std::memcpy(message, &counted, sizeof(counted));
  return length;
}

MXReturnValue frame_payload(const Map& map, std::vector<MXTensor>* inputs,
                            std::vector<MXTensor>*, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Layout layout(a);
    auto* message = static_cast<std::uint8_t*>(temporary_memory(resource, layout.bytes));
    const std::size_t length = join_parts(layout, *inputs, message), rows = layout.rows(length);
    mxnet::ext::MXSparse framed_rows;
    resource.alloc_sparse(&framed_rows, 0, static_cast<int>(rows));
    for (std::size_t i = 0; i < rows; ++i) {
      framed_rows.indices[i] = static_cast<std::int64_t>(a.size("row") + i);
    }
    auto* words = static_cast<std::uint32_t*>(framed_rows.data);
    frame(message, length, words);
    for (std::size_t i = frame_words(length); i < rows * layout.row_words; ++i) words[i] = framed_zero;
    count(a, *inputs, layout.traffic(rows));
  });
}

// Where each row of the messages is, or null.
std::vector<Words> present_rows(const Layout& layout, std::vector<MXTensor>& inputs,
                                std::size_t arrays, std::size_t count) {
  std::vector<Words> present(layout.message_rows * count);
  for (std::size_t i = 0; i < arrays; ++i) {
    const auto& rows = *inputs[i].data<mxnet::ext::MXSparse>();
    for (std::int64_t r = 0; r < rows.indices_len; ++r) {
      require(rows.indices[r] >= 0 && rows.indices[r] < static_cast<std::int64_t>(present.size()),
              "there is a row " + std::to_string(rows.indices[r]));
      present[rows.indices[r]] = static_cast<Words>(rows.data) + r * layout.row_words;
    }
  }
  return present;
}

void unframe_row(const Layout& layout, Words words, std::size_t bytes, const std::string& whose,
                 std::uint8_t* out) {
  require(words != nullptr, "a row of the message of rank " + whose + " is missing");
  require(framed(words, layout.row_words), "the row of rank " + whose + " is not a gluon_gc payload");
  unframe(words, bytes, out);
}

// Writes the message whose rows these are. Returns its length.
std::size_t unframe_message(const Layout& layout, const Words* rows, const std::string& whose,
                            std::uint8_t* out) {
  const std::size_t row_bytes = layout.row_bytes();
  unframe_row(layout, rows[0], layout.bytes < row_bytes ? layout.bytes : row_bytes, whose, out);
  const std::size_t length = layout.length(out), count = layout.rows(length);
  for (std::size_t r = 1; r < count; ++r) {
    const std::size_t left = length - r * row_bytes;
    unframe_row(layout, rows[r], left < row_bytes ? left : row_bytes, whose, out + r * row_bytes);
  }
  return length;
}

// Copies each part of a message to where it is wanted: row `place` of its output.
void split_message(const Layout& layout, const std::uint8_t* message, std::size_t length,
                   std::size_t place, std::vector<MXTensor>& outputs) {
  std::size_t at = layout.varies ? sizeof(std::uint32_t) : 0;
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    const Part& part = layout.parts[i];
    const std::size_t used = part.used(message + at, length - at);
    require(used <= length - at, "a message ends within a part");
    std::memcpy(outputs[i].data<std::uint8_t>() + place * part.bytes, message + at, used);
    at += used;
  }
  require(at == length, "a message goes on after its parts");
}

MXReturnValue rows_left_arity(const Map&, int* inputs, int* outputs) {
  *inputs = *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue rows_left_shape(const Map& map, std::vector<Shape>*, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    out->at(0) = {static_cast<unsigned int>(a.size("count")),
                  static_cast<unsigned int>(Layout(a).message_rows - 1)};
  });
}

// Row numbers may repeat in what MXNet pulls, but there must be one: the first row again if no other is
// needed.
MXReturnValue rows_left(const Map& map, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                        const OpResource&) {
  return guarded([&] {
    const Attributes a(map);
    const Layout layout(a);
    const std::size_t messages = a.size("count");
    const std::vector<Words> present = present_rows(layout, *inputs, 1, messages);
    std::vector<std::uint8_t> first(layout.row_bytes());
    auto* number = outputs->at(0).data<std::int64_t>();
    for (std::size_t m = 0; m < messages; ++m) {
      const std::size_t begin = m * layout.message_rows;
      unframe_row(layout, present[begin], first.size(), std::to_string(m), first.data());
      const std::size_t last = layout.rows(layout.length(first.data())) - 1;
      for (std::size_t i = 1; i < layout.message_rows; ++i) {
        *number++ = static_cast<std::int64_t>(begin + (i < last ? i : last));
      }
    }
  });
}

MXReturnValue keep_rows_arity(const Map&, int* inputs, int* outputs) {
  *inputs = 2;
  *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue keep_rows_mutates(const Map&, std::vector<int>* indices) {
  indices->push_back(1);
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue keep_rows_shape(const Map&, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    require(in->at(0) == in->at(1), "the rows to keep have another shape than where they are kept");
    out->at(0) = {1};
  });
}

MXReturnValue keep_rows(const Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                        const OpResource&) {
  return guarded([&] {
    const auto& rows = *inputs->at(0).data<mxnet::ext::MXSparse>();
    const auto& kept = *inputs->at(1).data<mxnet::ext::MXSparse>();
    const std::int64_t all = inputs->at(1).shape[0];
    const std::size_t words = inputs->at(1).shape[1];
    require(kept.indices_len == all, "rows are missing where rows are kept");
    for (std::int64_t r = 0; r < rows.indices_len; ++r) {
      require(rows.indices[r] >= 0 && rows.indices[r] < all,
              "there is a row " + std::to_string(rows.indices[r]));
      std::memcpy(static_cast<std::uint32_t*>(kept.data) + rows.indices[r] * words,
                  static_cast<Words>(rows.data) + r * words, words * sizeof(std::uint32_t));
    }
    outputs->at(0).data<std::int64_t>()[0] = rows.indices_len;
  });
}

MXReturnValue unframe_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    const Attributes a(map);
    *inputs = static_cast<int>(a.size("arrays")) + counted(a);
    *outputs = static_cast<int>(listed_parts(a).size());
  });
}

MXReturnValue unframe_mutates(const Map& map, std::vector<int>* indices) {
  return guarded([&] {
    const Attributes a(map);
    if (counted(a)) indices->push_back(static_cast<int>(a.size("arrays")));
  });
}

MXReturnValue unframe_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    require(in->at(0).size() == 2 && in->at(0)[1] == a.size("row_words"),
            "the rows are not of the length that the parts need");
    const std::vector<Part> parts = listed_parts(a);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      out->at(i) = {static_cast<unsigned int>(a.size("count")),
                    static_cast<unsigned int>(parts[i].bytes)};
    }
  });
}

MXReturnValue unframe_rows(const Map& map, std::vector<MXTensor>* inputs,
                           std::vector<MXTensor>* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Layout layout(a);
    const std::size_t messages = a.size("count"), arrays = a.size("arrays");
    const std::vector<Words> present = present_rows(layout, *inputs, arrays, messages);
    auto* message = static_cast<std::uint8_t*>(temporary_memory(resource, layout.bytes));
    for (std::size_t m = 0; m < messages; ++m) {
      const std::size_t length = unframe_message(layout, present.data() + m * layout.message_rows,
                                                 std::to_string(m), message);
      split_message(layout, message, length, m, *outputs);
    }
    std::size_t rows = 0;
    for (std::size_t i = 0; i < arrays; ++i) {
      rows += inputs->at(i).data<mxnet::ext::MXSparse>()->indices_len;
    }
    count(a, *inputs, layout.traffic(rows));
  });
}

const auto& frame_operator =
    add_operator("gluon_gc_frame")
        .setParseAttrs(frame_arity)
        .setMutateInputs(frame_mutates)
        .setInferType(output_type<mxnet::ext::kFloat32>)
        .setInferSType(output_storage<mxnet::ext::kRowSparseStorage>)
        .setInferShape(frame_shape)
        .setForward(frame_payload, "cpu");

const auto& rows_left_operator =
    add_operator("gluon_gc_rows_left")
        .setParseAttrs(rows_left_arity)
        .setInferType(output_type<mxnet::ext::kInt64>)
        .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
        .setInferShape(rows_left_shape)
        .setForward(rows_left, "cpu");

const auto& keep_rows_operator =
    add_operator("gluon_gc_keep_rows")
        .setParseAttrs(keep_rows_arity)
        .setMutateInputs(keep_rows_mutates)
        .setInferType(output_type<mxnet::ext::kInt64>)
        .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
        .setInferShape(keep_rows_shape)
        .setForward(keep_rows, "cpu");

const auto& unframe_operator =
    add_operator("gluon_gc_unframe")
        .setParseAttrs(unframe_arity)
        .setMutateInputs(unframe_mutates)
        .setInferType(output_type<mxnet::ext::kUint8>)
        .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
        .setInferShape(unframe_shape)
        .setForward(unframe_rows, "cpu");

}  // namespace
}  // namespace gluon_gc
