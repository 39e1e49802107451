// The float-safe framing as MXNet operators, from bytes to rows of a row_sparse array and back:
// what travels through MXNet's parameter server (see core/framing.h).
//
// gluon_gc_frame(payload (bytes,)) -> row_sparse (rows, words) with the one row `row`
// gluon_gc_unframe(row_sparse (rows, words)) -> (count, bytes): the rows 0 to count - 1
#include "../core/framing.h"

#include "operator.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;

MXReturnValue arity(const Map&, int* inputs, int* outputs) {
  *inputs = *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

template <int Type>
MXReturnValue output_type(const Map&, std::vector<int>*, std::vector<int>* out) {
  out->at(0) = Type;
  return mxnet::ext::MX_SUCCESS;
}

template <int In, int Out>
MXReturnValue storage(const Map&, std::vector<int>* in, std::vector<int>* out) {
  return guarded([&] {
    require(in->at(0) == In, "the input has the wrong storage type");
    out->at(0) = Out;
  });
}

MXReturnValue frame_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    out->at(0) = {static_cast<unsigned int>(Attributes(map).size("rows")),
                  static_cast<unsigned int>(frame_words(elements(in->at(0))))};
  });
}

MXReturnValue frame_payload(const Map& map, std::vector<MXTensor>* inputs,
                            std::vector<MXTensor>* outputs, const OpResource& resource) {
  return guarded([&] {
    MXTensor& payload = inputs->at(0);
    mxnet::ext::MXSparse row;
    resource.alloc_sparse(&row, 0, 1);
    row.indices[0] = static_cast<std::int64_t>(Attributes(map).size("row"));
    frame(payload.data<std::uint8_t>(), static_cast<std::size_t>(payload.size()),
          static_cast<std::uint32_t*>(row.data));
    (void)outputs;
  });
}

MXReturnValue unframe_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    require(in->at(0).size() == 2 && in->at(0)[1] == frame_words(a.size("bytes")),
            "the rows are not of the length that " + a.text("bytes") + " bytes need");
    out->at(0) = {static_cast<unsigned int>(a.size("count")),
                  static_cast<unsigned int>(a.size("bytes"))};
  });
}

MXReturnValue unframe_rows(const Map& map, std::vector<MXTensor>* inputs,
                           std::vector<MXTensor>* outputs, const OpResource&) {
  return guarded([&] {
    const Attributes a(map);
    const std::size_t count = a.size("count"), bytes = a.size("bytes");
    const std::size_t words = frame_words(bytes);
    const auto& rows = *inputs->at(0).data<mxnet::ext::MXSparse>();
    require(static_cast<std::size_t>(rows.indices_len) == count,
            "expected " + std::to_string(count) + " rows, got " + std::to_string(rows.indices_len));
    const auto* data = static_cast<const std::uint32_t*>(rows.data);
    auto* payloads = outputs->at(0).data<std::uint8_t>();
    for (std::size_t r = 0; r < count; ++r) {
      require(rows.indices[r] == static_cast<std::int64_t>(r),
              "the row of rank " + std::to_string(r) + " is missing");
      require(framed(data + r * words, words),
              "the row of rank " + std::to_string(r) + " is not a gluon_gc payload");
      unframe(data + r * words, bytes, payloads + r * bytes);
    }
  });
}

const auto& frame_operator =
    add_operator("gluon_gc_frame")
        .setParseAttrs(arity)
        .setInferType(output_type<mxnet::ext::kFloat32>)
        .setInferSType(storage<mxnet::ext::kDefaultStorage, mxnet::ext::kRowSparseStorage>)
        .setInferShape(frame_shape)
        .setForward(frame_payload, "cpu");

const auto& unframe_operator =
    add_operator("gluon_gc_unframe")
        .setParseAttrs(arity)
        .setInferType(output_type<mxnet::ext::kUint8>)
        .setInferSType(storage<mxnet::ext::kRowSparseStorage, mxnet::ext::kDefaultStorage>)
        .setInferShape(unframe_shape)
        .setForward(unframe_rows, "cpu");

}  // namespace
}  // namespace gluon_gc
