// gluon_gc_check_finite(values, meter) -> uint8 (1,), whether all is finite: looks for NaNs and infinities in
// some slices of what came back of a plain chunk, of which attribute `slices` lists begins and ends. In slice i
// they are an error if there is an attribute `refusedI`, which says what to call it; else they are counted.
// The values count as changed: who reads them afterwards waits for this, and gets its error.
#include "../core/finite.h"

#include <sstream>

#include "meter.h"
#include "operator.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;

MXReturnValue arity(const Map&, int* inputs, int* outputs) {
  *inputs = 2;
  *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue mutates(const Map&, std::vector<int>* indices) {
  *indices = {0, 1};
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue output_type(const Map&, std::vector<int>*, std::vector<int>* out) {
  out->at(0) = mxnet::ext::kUint8;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue output_shape(const Map&, std::vector<Shape>*, std::vector<Shape>* out) {
  out->at(0) = {1};
  return mxnet::ext::MX_SUCCESS;
}

bool finite(const MXTensor& values, std::size_t begin, std::size_t end) {
  require(begin <= end && end <= static_cast<std::size_t>(values.size()), "a slice is not of the values");
  const auto in = [&](auto zero) {
    return values_finite(static_cast<const decltype(zero)*>(values.data_ptr) + begin, end - begin);
  };
  if (values.dtype == mxnet::ext::kFloat16) return in(std::uint16_t{});
  if (values.dtype == mxnet::ext::kFloat32) return in(float{});
  require(values.dtype == mxnet::ext::kFloat64, "the values must be floats");
  return in(double{});
}

MXReturnValue check_finite(const Map& map, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                           const OpResource&) {
  return guarded([&] {
    const Attributes a(map);
    Meter& m = meter(inputs->at(1));
    m.calls += 1;
    std::istringstream slices(a.text("slices"));
    std::vector<std::string> found;  // what errors call the slices that are not finite
    for (std::size_t i = 0, begin, end; slices >> begin >> end; ++i) {
      if (!finite(inputs->at(0), begin, end)) found.push_back("refused" + std::to_string(i));
    }
    outputs->at(0).data<std::uint8_t>()[0] = found.empty();
    m.nonfinite += !found.empty();
    for (const std::string& name : found) {
      if (a.has(name)) throw std::invalid_argument(m.refusal(a.text(name)));
    }
  });
}

const auto& finite_operator = add_operator("gluon_gc_check_finite")
                                  .setParseAttrs(arity)
                                  .setMutateInputs(mutates)
                                  .setInferType(output_type)
                                  .setInferShape(output_shape)
                                  .setForward(check_finite, "cpu");

}  // namespace
}  // namespace gluon_gc
