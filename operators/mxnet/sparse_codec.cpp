// MXNet operators that compress row_sparse gradients.
//
// A message (core/row_format.h) holds one payload, of the values of all its rows, one row after the other. Messages are
// framed or not, as in codec.cpp.
//
// The attributes are those of chunks.h except `sizes`, because the number of rows changes from call to call, and
//
//   payload_bytes : the maximum length of a message
//   shape : the number of rows of the gradient, and the width of a row
//
// gluon_gc_rows_compress([residual], meter, gradient, [factor]) -> message
//     Compresses gradient * `scale`, and with `clipped` * factor. `step` is written to the meter. With `feedback`, the
//     residual is dense: it keeps the residual of a row until the row is in a gradient again.
//
// gluon_gc_rows_decompress(messages, ..., meter) -> row_sparse
//     Returns the sum of `count` messages, in `arrays` arrays. The operator fails if a message is not finite and there
//     is a `refused`: the name of the gradient.
#include "calls.h"
#include "meter.h"
#include "rows.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;

Layout layout_of(const Attributes& a) {
  return a.has("row_words") ? Layout({{a.size("payload_bytes"), true, 0}}, a) : Layout();
}

// The codec for the values of `rows` rows.
Chunk values_of(const Attributes& a, std::size_t rows) {
  Chunk values(a, gluon_gc_float32, rows * a.list("shape").at(1));
  read_positions(a, &values, 1);
  return values;
}

std::uint8_t* write_number(std::size_t number, std::uint8_t* to) {
  const auto word = static_cast<std::uint32_t>(number);
  std::memcpy(to, &word, sizeof(word));
  return to + sizeof(word);
}

// The residual of a gradient's rows: `own`, copied from and to the dense residual `all`.
class Residual {
 public:
  Residual(float* all, const Rows& rows, float* own) : all_(all), rows_(rows), own_(own) {}

  void gather() {
    for (std::size_t i = 0; i < rows_.count(); ++i) std::copy_n(of_row(i), rows_.width, own_ + i * rows_.width);
  }

  void scatter() {
    for (std::size_t i = 0; i < rows_.count(); ++i) std::copy_n(own_ + i * rows_.width, rows_.width, of_row(i));
  }

 private:
  float* of_row(std::size_t i) const { return all_ + static_cast<std::size_t>(rows_.sparse.indices[i]) * rows_.width; }

  float* const all_;
  const Rows& rows_;
  float* const own_;
};

MXReturnValue compress_arity(const Map& map, int* inputs, int* outputs) {
  const Attributes a(map);
  *inputs = 2 + a.flag("feedback") + a.flag("clipped");
  *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue compress_mutates(const Map& map, std::vector<int>* indices) {
  for (int i = 0; i <= static_cast<int>(Attributes(map).flag("feedback")); ++i) indices->push_back(i);
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue compress(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const bool feedback = a.flag("feedback");
    const Rows rows(inputs->at(1 + feedback));
    const Chunk values = values_of(a, rows.count());
    const Layout layout = layout_of(a);
    const std::size_t most = rows_head_bytes(rows.count()) + values.needs.payload_bytes;
    require(most <= a.size("payload_bytes"), "a message of rows has no room for its payload");
    const std::size_t framed_bytes = a.has("row_words") ? layout.begin() + most : 0;
    const auto& memory = values.needs.memory;
    const std::size_t kept_bytes = feedback ? values.n * sizeof(float) : 0;
    Arena arena(resource, {framed_bytes, values.needs.workspace_bytes, kept_bytes, memory[0] * sizeof(float),
                           memory[1] * sizeof(float)});
    std::uint8_t* const framed = arena.take(framed_bytes);
    std::uint8_t* const message = framed_bytes ? framed + layout.begin() : outputs->at(0).data<std::uint8_t>();

    gluon_gc_status status{};
    gluon_gc_call call = call_for(values, common_call(a, arena.take(values.needs.workspace_bytes)), &status);
    if (a.flag("clipped")) call.scale *= inputs->back().data<double>()[0];
    auto* const kept = reinterpret_cast<float*>(arena.take(kept_bytes));
    for (std::size_t i = 0; i < 2; ++i) call.state.memory[i] = arena.take(memory[i] * sizeof(float));
    Residual residual(feedback ? inputs->at(0).data<float>() : nullptr, rows, kept);
    if (feedback) {
      residual.gather();
      call.values = kept;
      check(gluon_gc_restore(&call, 1));
    }
    std::uint8_t* at = write_number(rows.count(), message + sizeof(std::uint32_t));
    for (std::size_t i = 0; i < rows.count(); ++i) {
      at = write_number(static_cast<std::size_t>(rows.sparse.indices[i]), at);
    }
    call.values = rows.sparse.data;
    call.payload = at;
    check(gluon_gc_compress(&call, 1));
    if (feedback) {
      call.values = kept;
      check(gluon_gc_residual(&call, 1));
      residual.scatter();
    }
    const std::size_t length = rows_head_bytes(rows.count()) + status.bytes;
    write_number(length, message);
    const std::size_t sent =
        framed_bytes ? frame_message(layout, framed, layout.begin() + length, a.size("row"), resource) : length;
    meter(inputs->at(feedback)).compressed(started, sent, a.size("step"));
  });
}

// A received message, in memory that outlives this object.
struct Received {
  Received(const std::uint8_t* message, std::size_t given, std::size_t all_rows) {
    require(given >= rows_head_bytes(0), "a message of rows ends within its head");
    const std::size_t length = read_length(message), count = read_length(message + sizeof(std::uint32_t));
    require(length <= given && rows_head_bytes(count) <= length, "a message of rows has a wrong length");
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t id = read_length(message + rows_head_bytes(i));
      require(static_cast<std::size_t>(id) < all_rows && (ids.empty() || id > ids.back()),
              "row " + std::to_string(id) + " of a message is out of range or out of order");
      ids.push_back(id);
    }
    payload = message + rows_head_bytes(count);
    payload_bytes = length - rows_head_bytes(count);
  }

  std::size_t length() const { return rows_head_bytes(ids.size()) + payload_bytes; }

  Ids ids;
  const std::uint8_t* payload;
  std::size_t payload_bytes;
};

// Reads the received messages. `memory` holds them if they were framed.
std::vector<Received> received_in(const Attributes& a, const Layout& layout, Tensors& inputs,
                                  std::vector<std::uint8_t>& memory) {
  const std::size_t arrays = a.size("arrays"), count = a.size("count"), rows = a.list("shape").at(0);
  std::vector<Received> all;
  if (!a.has("row_words")) {
    const std::size_t most = a.size("payload_bytes");
    require(static_cast<std::size_t>(inputs.at(0).size()) == count * most, "messages of rows have a wrong size");
    const std::uint8_t* const messages = inputs[0].data<std::uint8_t>();
    for (std::size_t m = 0; m < count; ++m) all.emplace_back(messages + m * most, most, rows);
    return all;
  }
  const std::vector<Words> present = present_rows(layout, inputs, arrays, count);
  memory.resize(rows_in(inputs, arrays) * layout.row_bytes());
  std::uint8_t* at = memory.data();
  for (std::size_t m = 0; m < count; ++m) {
    const std::size_t length =
        unframe_message(layout, present.data() + m * layout.message_rows, std::to_string(m), at);
    all.emplace_back(at + layout.begin(), length - layout.begin(), rows);
    at += layout.rows(length) * layout.row_bytes();
  }
  return all;
}

MXReturnValue gradient_shape(const Map& map, std::vector<Shape>*, std::vector<Shape>* out) {
  return guarded([&] {
    out->at(0).clear();
    for (const std::size_t size : Attributes(map).list("shape")) {
      out->at(0).push_back(static_cast<unsigned int>(size));
    }
  });
}

MXReturnValue decompress(const Map& map, Tensors* inputs, Tensors*, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Layout layout = layout_of(a);
    std::vector<std::uint8_t> memory;
    const std::vector<Received> all = received_in(a, layout, *inputs, memory);
    const std::size_t width = a.list("shape").at(1);
    Ids ids;
    std::vector<Chunk> codecs;
    std::size_t n = 0, payload_bytes = 0, workspace_bytes = 0, used = 0;
    for (const Received& message : all) {
      ids.insert(ids.end(), message.ids.begin(), message.ids.end());
      const Chunk& values = codecs.emplace_back(values_of(a, message.ids.size()));
      n = std::max(n, values.n);
      payload_bytes = std::max(payload_bytes, values.needs.payload_bytes);
      workspace_bytes = std::max(workspace_bytes, values.needs.workspace_bytes);
      used += message.length();
    }
    ids = each_once(std::move(ids));
    std::vector<float*> sums;
    write_rows(ids, width, resource, [&](std::size_t, float* row) {
      std::fill(row, row + width, 0.0f);
      sums.push_back(row);
    });

    Arena arena(resource, {n * sizeof(float), payload_bytes, workspace_bytes});
    auto* const decoded = reinterpret_cast<float*>(arena.take(n * sizeof(float)));
    std::uint8_t* const payload = arena.take(payload_bytes);
    const gluon_gc_call common = common_call(a, arena.take(workspace_bytes));
    bool finite = true;
    for (std::size_t m = 0; m < all.size(); ++m) {
      const Received& message = all[m];
      const Chunk& values = codecs[m];
      const bool fits = message.payload_bytes <= values.needs.payload_bytes;
      require(fits && gluon_gc_valid(values.codec.get(), message.payload, message.payload_bytes),
              "the payload of message " + std::to_string(m) + " is not one of " + std::to_string(values.n) +
                  " elements");
      std::memcpy(payload, message.payload, message.payload_bytes);  // decompress needs room for the maximum length
      gluon_gc_status status{};
      gluon_gc_call call = call_for(values, common, &status);
      call.values = decoded;
      call.payloads = payload;
      call.stride = values.needs.payload_bytes;
      call.count = 1;
      check(gluon_gc_decompress(&call, 1));
      finite = finite && status.finite != 0;
      for (std::size_t i = 0; i < message.ids.size(); ++i) {
        float* const sum = sums[std::lower_bound(ids.begin(), ids.end(), message.ids[i]) - ids.begin()];
        for (std::size_t j = 0; j < width; ++j) sum[j] += decoded[i * width + j];
      }
    }
    Meter& m = meter(inputs->back());
    m.decompressed(started, a.has("row_words") ? layout.traffic(rows_in(*inputs, a.size("arrays"))) : used);
    if (finite) return;
    m.nonfinite += 1;
    if (a.has("refused")) throw std::invalid_argument(m.refusal(a.text("refused")));
  });
}

const auto& compress_operator = add_operator("gluon_gc_rows_compress")
                                    .setParseAttrs(compress_arity)
                                    .setInferType(message_type)
                                    .setInferSType(message_storage)
                                    .setInferShape(message_shape)
                                    .setMutateInputs(compress_mutates)
                                    .setForward(compress, "cpu");

const auto& decompress_operator = add_operator("gluon_gc_rows_decompress")
                                      .setParseAttrs(reader_arity)
                                      .setInferType(output_type<mxnet::ext::kFloat32>)
                                      .setInferSType(output_storage<mxnet::ext::kRowSparseStorage>)
                                      .setInferShape(gradient_shape)
                                      .setMutateInputs(reader_mutates)
                                      .setForward(decompress, "cpu");

}  // namespace
}  // namespace gluon_gc
