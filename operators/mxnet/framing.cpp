// MXNet operators that frame messages of bytes. message.h describes messages and the attribute `parts`.
//
// gluon_gc_frame(part (bytes,), ...) -> row_sparse (rows, row_words)
//     Frames a message, from row `row` on.
//
// gluon_gc_unframe(row_sparse (rows, row_words)[, another]) -> (count, bytes), ...
//     Returns each part of the first `count` messages.
//
// gluon_gc_rows_left(row_sparse) -> int64 (count, message_rows - 1)
//     Returns the ids of the rows that each of the first `count` messages needs after its first row. The last id is
//     repeated.
//
// gluon_gc_keep_rows(source row_sparse, destination row_sparse with all rows) -> int64 (1,)
//     Copies the rows of the source to the destination, and returns their number.
#include "message.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;

Layout layout_of(const Attributes& a) { return Layout(listed_parts(a), a); }

MXReturnValue frame_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    *inputs = static_cast<int>(listed_parts(Attributes(map)).size());
    *outputs = 1;
  });
}

MXReturnValue frame_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    const std::vector<Part> parts = listed_parts(a);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      require(elements(in->at(i)) == parts[i].bytes, "a payload does not have the length of its part");
    }
    out->at(0) = {static_cast<unsigned int>(a.size("rows")),
                  static_cast<unsigned int>(a.size("row_words"))};
  });
}

MXReturnValue frame_parts(const Map& map, Tensors* inputs, Tensors*, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Layout layout = layout_of(a);
    std::uint8_t* const message = temporary_memory(resource, layout.bytes);
    std::size_t length = layout.begin();
    for (std::size_t i = 0; i < layout.parts.size(); ++i) {
      const auto* const part = inputs->at(i).data<std::uint8_t>();
      const std::size_t used = layout.parts[i].used(part, layout.parts[i].bytes);
      std::memcpy(message + length, part, used);
      length += used;
    }
    frame_message(layout, message, length, a.size("row"), resource);
  });
}

MXReturnValue unframe_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    const Attributes a(map);
    *inputs = static_cast<int>(a.size("arrays"));
    *outputs = static_cast<int>(listed_parts(a).size());
  });
}

MXReturnValue unframe_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    require(in->at(0).size() == 2 && in->at(0)[1] == a.size("row_words"),
            "the rows do not have row_words words");
    const std::vector<Part> parts = listed_parts(a);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      out->at(i) = {static_cast<unsigned int>(a.size("count")),
                    static_cast<unsigned int>(parts[i].bytes)};
    }
  });
}

MXReturnValue unframe_rows(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Layout layout = layout_of(a);
    const std::size_t messages = a.size("count");
    const std::vector<Words> present = present_rows(layout, *inputs, a.size("arrays"), messages);
    std::uint8_t* const message = temporary_memory(resource, layout.bytes);
    for (std::size_t m = 0; m < messages; ++m) {
      const std::size_t length =
          unframe_message(layout, present.data() + m * layout.message_rows, std::to_string(m), message);
      std::vector<std::uint8_t*> to;
      for (std::size_t i = 0; i < layout.parts.size(); ++i) {
        to.push_back(outputs->at(i).data<std::uint8_t>() + m * layout.parts[i].bytes);
      }
      split_message(layout, message, length, to);
    }
  });
}

MXReturnValue rows_left_shape(const Map& map, std::vector<Shape>*, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    out->at(0) = {static_cast<unsigned int>(a.size("count")),
                  static_cast<unsigned int>(a.size("message_rows") - 1)};
  });
}

// MXNet's pull accepts repeated row ids, but needs at least one. So the first row is pulled again if a message needs
// no other.
MXReturnValue rows_left(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const Attributes a(map);
    const Layout layout = layout_of(a);
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

MXReturnValue keep_rows_shape(const Map&, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    require(in->at(0) == in->at(1), "the source and the destination of rows have different shapes");
    out->at(0) = {1};
  });
}

MXReturnValue keep_rows(const Map&, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const auto& rows = *inputs->at(0).data<mxnet::ext::MXSparse>();
    const auto& kept = *inputs->at(1).data<mxnet::ext::MXSparse>();
    const std::int64_t all = inputs->at(1).shape[0];
    const std::size_t words = inputs->at(1).shape[1];
    require(kept.indices_len == all, "the destination of rows does not have all rows");
    for (std::int64_t r = 0; r < rows.indices_len; ++r) {
      require(rows.indices[r] >= 0 && rows.indices[r] < all,
              "row " + std::to_string(rows.indices[r]) + " is out of range");
      std::memcpy(static_cast<std::uint32_t*>(kept.data) + rows.indices[r] * words,
                  static_cast<Words>(rows.data) + r * words, words * sizeof(std::uint32_t));
    }
    outputs->at(0).data<std::int64_t>()[0] = rows.indices_len;
  });
}

const auto& frame_operator =
    add_operator("gluon_gc_frame")
        .setParseAttrs(frame_arity)
        .setInferType(output_type<mxnet::ext::kFloat32>)
        .setInferSType(output_storage<mxnet::ext::kRowSparseStorage>)
        .setInferShape(frame_shape)
        .setForward(frame_parts, "cpu");

const auto& unframe_operator =
    add_operator("gluon_gc_unframe")
        .setParseAttrs(unframe_arity)
        .setInferType(output_type<mxnet::ext::kUint8>)
        .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
        .setInferShape(unframe_shape)
        .setForward(unframe_rows, "cpu");

const auto& rows_left_operator =
    add_operator("gluon_gc_rows_left")
        .setParseAttrs(fixed_arity<1>)
        .setInferType(output_type<mxnet::ext::kInt64>)
        .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
        .setInferShape(rows_left_shape)
        .setForward(rows_left, "cpu");

const auto& keep_rows_operator =
    add_operator("gluon_gc_keep_rows")
        .setParseAttrs(fixed_arity<2>)
        .setMutateInputs(mutates_input<1>)
        .setInferType(output_type<mxnet::ext::kInt64>)
        .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
        .setInferShape(keep_rows_shape)
        .setForward(keep_rows, "cpu");

}  // namespace
}  // namespace gluon_gc
