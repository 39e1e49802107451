// MXNet operators for uncompressed row_sparse gradients.
//
// A list of rows (core/row_format.h) is uint8 of shape (4 + 4 R,), with room for all R rows. A gradient without rows is
// sent as one row of zeros, row 0, because MXNet's engines cannot handle arrays without rows.
//
// gluon_gc_rows_scaled(gradient, meter, [factor]) -> row_sparse
//     Returns gradient * `scale`, and with `clipped` * factor. `step` is written to the meter.
//
// gluon_gc_rows_listed(gradient) -> list
//     Returns the list of the gradient's rows.
//
// gluon_gc_rows_of_any(lists (count, 4 + 4 R)) -> int64 (R,)
//     Returns the ids of the rows that are in any list. The last id is repeated.
//
// gluon_gc_rows_received(rows, meter, [lists]) -> row_sparse
//     Returns the rows that are in any list, or without `lists` all rows. With `checked`, the meter counts a result
//     that is not finite, and the operator fails if there is a `refused`: the name of the gradient.
#include <algorithm>

#include "../core/finite.h"
#include "message.h"
#include "meter.h"
#include "rows.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;

// The ids of the rows that are in any list, ascending.
Ids listed_in(MXTensor& lists) {
  const auto count = static_cast<std::size_t>(lists.shape.at(0)), bytes = static_cast<std::size_t>(lists.shape.at(1));
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* const list = lists.data<std::uint8_t>() + i * bytes;
    std::uint32_t used, id;
    std::memcpy(&used, list, row_id_bytes);
    require(used >= row_id_bytes && used <= bytes && used % row_id_bytes == 0, "a list of rows has a wrong length");
    for (std::size_t at = row_id_bytes; at < used; at += row_id_bytes) {
      std::memcpy(&id, list + at, row_id_bytes);
      require(id < bytes / row_id_bytes - 1, "row " + std::to_string(id) + " of a list is out of range");
      ids.push_back(id);
    }
  }
  return each_once(std::move(ids));
}

MXReturnValue same_shape(const Map&, std::vector<Shape>* in, std::vector<Shape>* out) {
  out->at(0) = in->at(0);
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue scaled_arity(const Map& map, int* inputs, int* outputs) {
  *inputs = 2 + Attributes(map).flag("clipped");
  *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue scaled(const Map& map, Tensors* inputs, Tensors*, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Rows rows(inputs->at(0));
    const double factor = a.flag("clipped") ? inputs->back().data<double>()[0] : 1;
    const auto scale = static_cast<float>(a.number("scale") * factor);
    const Ids ids(rows.sparse.indices, rows.sparse.indices + rows.count());
    write_rows(ids, rows.width, resource, [&](std::size_t i, float* row) {
      for (std::size_t j = 0; j < rows.width; ++j) row[j] = rows.at(i)[j] * scale;
    });
    meter(inputs->at(1)).compressed(started, rows.traffic(rows.count()), a.size("step"));
  });
}

MXReturnValue list_shape(const Map&, std::vector<Shape>* in, std::vector<Shape>* out) {
  out->at(0) = {static_cast<unsigned int>(row_list_bytes(in->at(0).at(0)))};
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue list_rows(const Map&, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const Rows rows(inputs->at(0));
    std::uint8_t* at = outputs->at(0).data<std::uint8_t>();
    const auto put = [&](std::size_t number) {
      const auto word = static_cast<std::uint32_t>(number);
      std::memcpy(at, &word, row_id_bytes);
      at += row_id_bytes;
    };
    put(row_list_bytes(rows.count()));
    for (std::size_t i = 0; i < rows.count(); ++i) put(static_cast<std::size_t>(rows.sparse.indices[i]));
  });
}

MXReturnValue ids_shape(const Map&, std::vector<Shape>* in, std::vector<Shape>* out) {
  out->at(0) = {static_cast<unsigned int>(in->at(0).at(1) / row_id_bytes - 1)};
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue rows_of_any(const Map&, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const Ids ids = listed_in(inputs->at(0));
    auto* const out = outputs->at(0).data<std::int64_t>();
    std::copy(ids.begin(), ids.end(), out);
    std::fill(out + ids.size(), out + outputs->at(0).size(), ids.empty() ? 0 : ids.back());
  });
}

MXReturnValue received_arity(const Map& map, int* inputs, int* outputs) {
  *inputs = 2 + Attributes(map).flag("lists");
  *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue received(const Map& map, Tensors* inputs, Tensors*, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Rows rows(inputs->at(0));
    const std::int64_t *const first = rows.sparse.indices, *const last = first + rows.count();
    const Ids ids = a.flag("lists") ? listed_in(inputs->at(2)) : Ids(first, last);
    bool finite = true;
    write_rows(ids, rows.width, resource, [&](std::size_t i, float* row) {
      const std::int64_t* const found = std::lower_bound(first, last, ids[i]);
      require(found != last && *found == ids[i], "row " + std::to_string(ids[i]) + " was not received");
      const float* const values = rows.at(static_cast<std::size_t>(found - first));
      std::copy(values, values + rows.width, row);
      finite = finite && values_finite(values, rows.width);
    });
    Meter& m = meter(inputs->at(1));
    m.decompressed(started, rows.traffic(ids.size()));
    if (finite || !a.flag("checked")) return;
    m.nonfinite += 1;
    if (a.has("refused")) throw std::invalid_argument(m.refusal(a.text("refused")));
  });
}

const auto& scaled_operator = add_operator("gluon_gc_rows_scaled")
                                  .setParseAttrs(scaled_arity)
                                  .setInferType(output_type<mxnet::ext::kFloat32>)
                                  .setInferSType(output_storage<mxnet::ext::kRowSparseStorage>)
                                  .setInferShape(same_shape)
                                  .setMutateInputs(mutates_input<1>)
                                  .setForward(scaled, "cpu");

const auto& listed_operator = add_operator("gluon_gc_rows_listed")
                                  .setParseAttrs(fixed_arity<1>)
                                  .setInferType(output_type<mxnet::ext::kUint8>)
                                  .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
                                  .setInferShape(list_shape)
                                  .setForward(list_rows, "cpu");

const auto& any_operator = add_operator("gluon_gc_rows_of_any")
                               .setParseAttrs(fixed_arity<1>)
                               .setInferType(output_type<mxnet::ext::kInt64>)
                               .setInferShape(ids_shape)
                               .setForward(rows_of_any, "cpu");

const auto& received_operator = add_operator("gluon_gc_rows_received")
                                    .setParseAttrs(received_arity)
                                    .setInferType(output_type<mxnet::ext::kFloat32>)
                                    .setInferSType(output_storage<mxnet::ext::kRowSparseStorage>)
                                    .setInferShape(same_shape)
                                    .setMutateInputs(mutates_input<1>)
                                    .setForward(received, "cpu");

}  // namespace
}  // namespace gluon_gc
