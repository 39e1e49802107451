// Values as bytes, and sums of such: how float64 travels through MXNet's parameter server, which may sum
// what is dense in float32.
//
// gluon_gc_as_bytes(x) -> uint8: the bytes of its values
// gluon_gc_sum_rows(uint8 (rows, bytes)) -> (n,) of `dtype`: the sum of the rows' values, in their order
#include <cstring>

#include "operator.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;

MXReturnValue arity(const Map&, int* inputs, int* outputs) {
  *inputs = *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue bytes_type(const Map&, std::vector<int>*, std::vector<int>* out) {
  out->at(0) = mxnet::ext::kUint8;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue bytes_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    with_dtype(dtype_named(Attributes(map).text("dtype")), [&](auto zero) {
      out->at(0) = {static_cast<unsigned int>(elements(in->at(0)) * sizeof(zero))};
    });
  });
}

MXReturnValue as_bytes(const Map& map, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const OpResource&) {
  return guarded([&] {
    MXTensor& x = inputs->at(0);
    require(x.dtype == dtype_named(Attributes(map).text("dtype")), "the values have another dtype");
    std::memcpy(outputs->at(0).data_ptr, x.data_ptr, outputs->at(0).size());
  });
}

MXReturnValue sum_type(const Map& map, std::vector<int>*, std::vector<int>* out) {
  return guarded([&] { out->at(0) = dtype_named(Attributes(map).text("dtype")); });
}

MXReturnValue sum_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    require(in->at(0).size() == 2, "rows of bytes must have two dimensions");
    with_dtype(dtype_named(Attributes(map).text("dtype")), [&](auto zero) {
      out->at(0) = {static_cast<unsigned int>(in->at(0)[1] / sizeof(zero))};
    });
  });
}

MXReturnValue sum_rows(const Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const OpResource&) {
  return guarded([&] {
    MXTensor& rows = inputs->at(0);
    MXTensor& sum = outputs->at(0);
    with_dtype(sum.dtype, [&](auto zero) {
      using T = decltype(zero);
      const auto* values = reinterpret_cast<const T*>(rows.data<std::uint8_t>());
      auto* out = sum.data<T>();
      const std::int64_t n = sum.size();
      for (std::int64_t i = 0; i < n; ++i) out[i] = values[i];
      for (std::int64_t row = 1; row < rows.shape[0]; ++row) {
        for (std::int64_t i = 0; i < n; ++i) out[i] += values[row * n + i];
      }
    });
  });
}

const auto& as_bytes_operator = add_operator("gluon_gc_as_bytes")
                                    .setParseAttrs(arity)
                                    .setInferType(bytes_type)
                                    .setInferShape(bytes_shape)
                                    .setForward(as_bytes, "cpu");

const auto& sum_rows_operator = add_operator("gluon_gc_sum_rows")
                                    .setParseAttrs(arity)
                                    .setInferType(sum_type)
                                    .setInferShape(sum_shape)
                                    .setForward(sum_rows, "cpu");

}  // namespace
}  // namespace gluon_gc
