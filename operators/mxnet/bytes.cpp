// MXNet operators that turn values into bytes and sum such bytes. They serve float64 gradients, which MXNet's parameter
// server may sum in float32, and values in memory that processes share.
//
// gluon_gc_as_bytes(x) -> uint8: the bytes of x, whose dtype is `dtype`.
//
// gluon_gc_sum_rows(uint8 (rows, bytes)) -> (n,) of `dtype`: the sum of the rows, in row order. float16 is summed in
//     float32.
#include <algorithm>
#include <cstring>

#include "../core/half.h"
#include "operator.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;

MXReturnValue bytes_type(const Map&, std::vector<int>*, std::vector<int>* out) {
  out->at(0) = mxnet::ext::kUint8;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue bytes_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const std::size_t itemsize = bytes_of_float(dtype_named(Attributes(map).text("dtype")));
    out->at(0) = {static_cast<unsigned int>(elements(in->at(0)) * itemsize)};
  });
}

MXReturnValue as_bytes(const Map& map, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const OpResource&) {
  return guarded([&] {
    MXTensor& x = inputs->at(0);
    require(x.dtype == dtype_named(Attributes(map).text("dtype")), "the values do not have the given dtype");
    std::memcpy(outputs->at(0).data_ptr, x.data_ptr, outputs->at(0).size());
  });
}

MXReturnValue sum_type(const Map& map, std::vector<int>*, std::vector<int>* out) {
  return guarded([&] { out->at(0) = dtype_named(Attributes(map).text("dtype")); });
}

MXReturnValue sum_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    require(in->at(0).size() == 2, "rows of bytes must have two dimensions");
    const std::size_t itemsize = bytes_of_float(dtype_named(Attributes(map).text("dtype")));
    out->at(0) = {static_cast<unsigned int>(in->at(0)[1] / itemsize)};
  });
}

constexpr std::size_t block = 4096;  // elements whose sum stays in the L1 cache

template <typename T>
void add(const T* x, std::size_t n, T* sum) {
  for (std::size_t i = 0; i < n; ++i) sum[i] += x[i];
}

template <typename T>
void sum_block(const T* x, std::size_t rows, std::size_t stride, std::size_t n, T* sum) {
  std::copy(x, x + n, sum);
  for (std::size_t row = 1; row < rows; ++row) add(x + row * stride, n, sum);
}

void sum_block(const std::uint16_t* x, std::size_t rows, std::size_t stride, std::size_t n, std::uint16_t* sum) {
  float total[block], one[block];
  float_from_half(x, n, total);
  for (std::size_t row = 1; row < rows; ++row) {
    float_from_half(x + row * stride, n, one);
    add(one, n, total);
  }
  half_from_float(total, n, 1, sum);
}

template <typename T>
void sum_all(const MXTensor& x, MXTensor& sum) {
  const auto* const values = static_cast<const T*>(x.data_ptr);
  const std::size_t n = sum.size();
  for (std::size_t begin = 0; begin < n; begin += block) {
    sum_block(values + begin, x.shape[0], n, std::min(block, n - begin), static_cast<T*>(sum.data_ptr) + begin);
  }
}

MXReturnValue sum_rows(const Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const OpResource&) {
  return guarded([&] {
    switch (outputs->at(0).dtype) {
      case mxnet::ext::kFloat16: return sum_all<std::uint16_t>(inputs->at(0), outputs->at(0));
      case mxnet::ext::kFloat32: return sum_all<float>(inputs->at(0), outputs->at(0));
      default: return sum_all<double>(inputs->at(0), outputs->at(0));
    }
  });
}

const auto& as_bytes_operator = add_operator("gluon_gc_as_bytes")
                                    .setParseAttrs(fixed_arity<1>)
                                    .setInferType(bytes_type)
                                    .setInferShape(bytes_shape)
                                    .setForward(as_bytes, "cpu");

const auto& sum_rows_operator = add_operator("gluon_gc_sum_rows")
                                    .setParseAttrs(fixed_arity<1>)
                                    .setInferType(sum_type)
                                    .setInferShape(sum_shape)
                                    .setForward(sum_rows, "cpu");

}  // namespace
}  // namespace gluon_gc
