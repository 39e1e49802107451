// The MXNet operator that clips the gradients of a worker by their global l2 norm.
//
// gluon_gc_clip(gradient, ...) -> factor, float64 (1,)
//
//     norm = scale * sqrt(sum of squares of all gradients),  factor = min(1, max_norm / norm)
//
//     The caller multiplies the gradients by the factor. It is 1 if the norm is not finite. There are `gradients`
//     gradients, of any float dtype. On the CPU they may be row_sparse. Each gradient is summed in the fixed tree of sums.h; then these sums are added in input order.
#include <algorithm>
#include <cmath>

#include "../core/abi.h"
#include "../core/half.h"
#include "../core/rules.h"
#include "../core/squares.h"
#include "operator.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;
using mxnet::ext::MXSparse;

MXReturnValue clip_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    *inputs = static_cast<int>(Attributes(map).size("gradients"));
    *outputs = 1;
  });
}

MXReturnValue clip_shape(const Map&, std::vector<Shape>*, std::vector<Shape>* out) {
  out->at(0) = {1};
  return mxnet::ext::MX_SUCCESS;
}

// The number of values; of a row_sparse gradient, of the rows that it has.
std::size_t size_of(MXTensor& gradient) {
  const bool sparse = gradient.stype == mxnet::ext::kRowSparseStorage;
  return static_cast<std::size_t>(sparse ? gradient.data<MXSparse>()->data_len : gradient.size());
}

double squares_of(MXTensor& gradient, float* converted, double* sums) {
  const std::size_t n = size_of(gradient);
  if (gradient.stype == mxnet::ext::kRowSparseStorage) {
    require(gradient.dtype == mxnet::ext::kFloat32, "rows must be float32");
    return sum_of_squares(static_cast<const float*>(gradient.data<MXSparse>()->data), n, sums);
  }
  switch (gradient.dtype) {
    case mxnet::ext::kFloat16:
      float_from_half(gradient.data<std::uint16_t>(), n, converted);
      return sum_of_squares(converted, n, sums);
    case mxnet::ext::kFloat32: return sum_of_squares(gradient.data<float>(), n, sums);
    case mxnet::ext::kFloat64: return sum_of_squares(gradient.data<double>(), n, sums);
    default: throw std::invalid_argument("a gradient that is not floating-point cannot be clipped");
  }
}

MXReturnValue clip(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    std::size_t most = 0, most_halves = 0;
    for (MXTensor& gradient : *inputs) {
      const std::size_t n = size_of(gradient);
      most = std::max(most, n);
      if (gradient.dtype == mxnet::ext::kFloat16) most_halves = std::max(most_halves, n);
    }
    const std::size_t bytes = sums_bytes(most);
    Arena arena(resource, {bytes, most_halves * sizeof(float)});
    auto* const sums = reinterpret_cast<double*>(arena.take(bytes));
    auto* const converted = reinterpret_cast<float*>(arena.take(most_halves * sizeof(float)));
    double total = 0;
    for (MXTensor& gradient : *inputs) total += squares_of(gradient, converted, sums);
    outputs->at(0).data<double>()[0] = clipping_factor(a.number("scale") * std::sqrt(total), a.number("max_norm"));
  });
}

MXReturnValue clip_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    std::vector<gluon_gc_values> arrays;
    for (const MXTensor& gradient : *inputs) {
      arrays.push_back({gradient.data_ptr, static_cast<std::size_t>(gradient.size()), bytes_of_float(gradient.dtype)});
    }
    gluon_gc_clipping clipping{};
    clipping.scale = a.number("scale");
    clipping.max_norm = a.number("max_norm");
    clipping.factor = outputs->at(0).data<double>();
    clipping.workspace = temporary_memory(resource, gluon_gc_clip_workspace(arrays.data(), arrays.size()), true);
    clipping.stream = resource.get_cuda_stream();
    check(gluon_gc_clip(arrays.data(), arrays.size(), &clipping));
  });
}

const auto& clip_operator = add_operator("gluon_gc_clip")
                                .setParseAttrs(clip_arity)
                                .setInferType(output_type<mxnet::ext::kFloat64>)
                                .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
                                .setInferShape(clip_shape)
                                .setForward(clip, "cpu")
                                .setForward(clip_on_gpu, "gpu");

}  // namespace
}  // namespace gluon_gc
