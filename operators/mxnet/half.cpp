// The float16 casts as MXNet operators: gluon_gc_half_from_float (which multiplies by a scale
// first) and gluon_gc_float_from_half.
#include "../core/half.h"

#include "operator.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;

MXReturnValue arity(const Map&, int* inputs, int* outputs) {
  *inputs = *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue same_shape(const Map&, std::vector<Shape>* in, std::vector<Shape>* out) {
  out->at(0) = in->at(0);
  return mxnet::ext::MX_SUCCESS;
}

template <int From, int To>
MXReturnValue cast_type(const Map&, std::vector<int>* in, std::vector<int>* out) {
  return guarded([&] {
    require(in->at(0) == From, "the input's dtype is not the one that the cast is from");
    out->at(0) = To;
  });
}

MXReturnValue to_half(const Map& map, std::vector<MXTensor>* inputs,
                      std::vector<MXTensor>* outputs, const OpResource&) {
  return guarded([&] {
    MXTensor& x = inputs->at(0);
    half_from_float(x.data<float>(), static_cast<std::size_t>(x.size()),
                    static_cast<float>(Attributes(map).number("scale", 1)),
                    outputs->at(0).data<std::uint16_t>());
  });
}

MXReturnValue to_float(const Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const OpResource&) {
  return guarded([&] {
    MXTensor& x = inputs->at(0);
    float_from_half(x.data<std::uint16_t>(), static_cast<std::size_t>(x.size()),
                    outputs->at(0).data<float>());
  });
}

const auto& half_operator = add_operator("gluon_gc_half_from_float")
                                .setParseAttrs(arity)
                                .setInferType(cast_type<mxnet::ext::kFloat32, mxnet::ext::kFloat16>)
                                .setInferShape(same_shape)
                                .setForward(to_half, "cpu");

const auto& float_operator = add_operator("gluon_gc_float_from_half")
                                 .setParseAttrs(arity)
                                 .setInferType(cast_type<mxnet::ext::kFloat16, mxnet::ext::kFloat32>)
                                 .setInferShape(same_shape)
                                 .setForward(to_float, "cpu");

}  // namespace
}  // namespace gluon_gc
