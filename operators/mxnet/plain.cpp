// MXNet operators for uncompressed messages. One call handles all slices of a message.
//
// The slices lie one after the other in the message. `tensors`, `begins` and `sizes` list the gradient of each slice,
// its first element in the gradient, and its number of elements. Values are rounded once, when they are stored.
//
// gluon_gc_fuse([meter], gradient, ..., [factor]) -> values of `dtype`
//     Returns the slices times `scale`. With `clipped`, they are also multiplied by factor, float64 (1,). With
//     `metered`, the meter counts the call as part of `step`.
//
// gluon_gc_defuse(values, gradient, ...) -> meter
//     Writes the values to the gradients. The caller passes the meter as `out`. `checked` lists 1 for each slice that
//     is searched for NaNs and infinities, else 0. If there are any, the meter counts the message, and the operator
//     fails if `refused` has a line with a name for the slice. With `metered=0`, the output is int64: 1 for each slice
//     with NaNs or infinities, else 0.
//
// On a GPU there is no meter, and arrays are float16, float32 or float64.
#include "../core/finite.h"
#include "../core/half.h"
#include "calls.h"
#include "meter.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;
using Half = std::uint16_t;

// Calls body with a typed pointer to the values of an array. For float16 it is a pointer to their bits.
template <typename Body>
void with_values(const MXTensor& array, Body&& body) {
  void* const data = array.data_ptr;
  switch (array.dtype) {
    case mxnet::ext::kFloat16: return body(static_cast<Half*>(data));
    case mxnet::ext::kFloat32: return body(static_cast<float*>(data));
    case mxnet::ext::kFloat64: return body(static_cast<double*>(data));
    case mxnet::ext::kUint8: return body(static_cast<std::uint8_t*>(data));
    case mxnet::ext::kInt8: return body(static_cast<std::int8_t*>(data));
    case mxnet::ext::kInt32: return body(static_cast<std::int32_t*>(data));
    case mxnet::ext::kInt64: return body(static_cast<std::int64_t*>(data));
    default: throw std::invalid_argument("an array has a dtype that cannot be summed");
  }
}

// to = from * scale, for n values. If either type is float16, values are converted through float.
template <typename From, typename To>
void convert(const From* from, std::size_t n, double scale, To* to) {
  if constexpr (std::is_same_v<From, Half> || std::is_same_v<To, Half>) {
    constexpr std::size_t tile = 1024;
    float values[tile];
    for (std::size_t begin = 0; begin < n; begin += tile) {
      const std::size_t count = n - begin < tile ? n - begin : tile;
      if constexpr (std::is_same_v<From, Half>) {
        float_from_half(from + begin, count, values);
      } else {
        for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(from[begin + i]);
      }
      if constexpr (std::is_same_v<To, Half>) {
        half_from_float(values, count, static_cast<float>(scale), to + begin);
      } else {
        for (std::size_t i = 0; i < count; ++i) to[begin + i] = static_cast<To>(values[i] * scale);
      }
    }
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, float>) {
    const auto factor = static_cast<float>(scale);
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i] * factor;
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<To>(static_cast<double>(from[i]) * scale);
  }
}

struct Slices {
  Slices(const Attributes& a, const Tensors& arrays, std::size_t first)
      : tensors(a.list("tensors")), begins(a.list("begins")), sizes(a.list("sizes")) {
    require(tensors.size() == sizes.size() && begins.size() == sizes.size(),
            "tensors, begins and sizes must have a number for each slice");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      total += sizes[i];
      require(begins[i] + sizes[i] <= static_cast<std::size_t>(arrays.at(first + tensors[i]).size()),
              "a slice ends after its gradient");
    }
  }

  std::vector<std::size_t> tensors, begins, sizes;
  std::size_t total = 0;
};

std::size_t bytes_of(const MXTensor& values) {
  std::size_t bytes = 0;
  with_values(values, [&](const auto* data) { bytes = static_cast<std::size_t>(values.size()) * sizeof(*data); });
  return bytes;
}

MXReturnValue fuse_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    const Attributes a(map);
    *inputs = static_cast<int>(a.flag("metered") + a.size("gradients") + a.flag("clipped"));
    *outputs = 1;
  });
}

MXReturnValue fuse_mutates(const Map& map, std::vector<int>* indices) {
  return guarded([&] {
    if (Attributes(map).flag("metered")) indices->push_back(0);
  });
}

MXReturnValue fuse_type(const Map& map, std::vector<int>*, std::vector<int>* out) {
  return guarded([&] { out->at(0) = dtype_named(Attributes(map).text("dtype")); });
}

MXReturnValue fuse_shape(const Map& map, std::vector<Shape>*, std::vector<Shape>* out) {
  return guarded([&] {
    std::size_t total = 0;
    for (const std::size_t size : Attributes(map).list("sizes")) total += size;
    out->at(0) = {static_cast<unsigned int>(total)};
  });
}

MXReturnValue fuse(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const std::size_t first = a.flag("metered");
    const Slices slices(a, *inputs, first);
    const double scale = a.number("scale") * (a.flag("clipped") ? inputs->back().data<double>()[0] : 1);
    std::size_t at = 0;
    for (std::size_t i = 0; i < slices.sizes.size(); ++i) {
      with_values(inputs->at(first + slices.tensors[i]), [&](const auto* gradient) {
        with_values(outputs->at(0), [&](auto* values) {
          convert(gradient + slices.begins[i], slices.sizes[i], scale, values + at);
        });
      });
      at += slices.sizes[i];
    }
    if (a.flag("metered")) meter(inputs->at(0)).compressed(started, bytes_of(outputs->at(0)), a.size("step"));
  });
}

MXReturnValue defuse_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    *inputs = static_cast<int>(1 + Attributes(map).size("gradients"));
    *outputs = 1;
  });
}

MXReturnValue defuse_mutates(const Map& map, std::vector<int>* indices) {
  return guarded([&] {
    const int count = static_cast<int>(Attributes(map).size("gradients"));
    for (int i = 1; i <= count; ++i) indices->push_back(i);
  });
}

bool finite(MXTensor& values, std::size_t begin, std::size_t size) {
  if (values.dtype == mxnet::ext::kFloat16) return values_finite(values.data<Half>() + begin, size);
  if (values.dtype == mxnet::ext::kFloat32) return values_finite(values.data<float>() + begin, size);
  return values_finite(values.data<double>() + begin, size);
}

MXReturnValue defuse(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Slices slices(a, *inputs, 1);
    const std::vector<std::size_t> checked = a.list("checked");
    MXTensor& values = inputs->at(0);
    require(slices.total == static_cast<std::size_t>(values.size()), "the slices do not have as many values as given");
    std::vector<std::size_t> found;
    std::size_t at = 0;
    for (std::size_t i = 0; i < slices.sizes.size(); ++i) {
      if (checked.at(i) != 0 && !finite(values, at, slices.sizes[i])) found.push_back(i);
      with_values(values, [&](const auto* from) {
        with_values(inputs->at(1 + slices.tensors[i]), [&](auto* gradient) {
          convert(from + at, slices.sizes[i], 1, gradient + slices.begins[i]);
        });
      });
      at += slices.sizes[i];
    }
    if (!metered(a)) {
      auto* const flags = outputs->at(0).data<std::int64_t>();
      std::fill(flags, flags + slices.sizes.size(), 0);
      for (const std::size_t i : found) flags[i] = 1;
      return;
    }
    Meter& m = meter(outputs->at(0));
    m.decompressed(started, bytes_of(values));
    m.nonfinite += !found.empty();
    const std::vector<std::string> refused = a.lines("refused");
    for (const std::size_t i : found) {
      if (i < refused.size() && !refused[i].empty()) throw std::invalid_argument(m.refusal(refused[i]));
    }
  });
}

MXReturnValue defuse_type(const Map& map, std::vector<int>*, std::vector<int>* out) {
  return guarded([&] { out->at(0) = metered(Attributes(map)) ? mxnet::ext::kFloat64 : mxnet::ext::kInt64; });
}

MXReturnValue defuse_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    if (metered(a)) {
      meter_shape(map, in, out);
    } else {
      out->at(0) = {static_cast<unsigned int>(a.list("sizes").size())};
    }
  });
}

// Values of an array on a GPU, from element `begin` on.
struct Piece {
  Piece(const MXTensor& array, std::size_t begin)
      : itemsize(bytes_of_float(array.dtype)), at(static_cast<char*>(array.data_ptr) + begin * itemsize) {}

  int itemsize;
  void* at;
};

gluon_gc_conversion conversion(const Piece& from, const Piece& to, std::size_t n) {
  return {from.at, to.at, n, from.itemsize, to.itemsize, 1, nullptr, nullptr};
}

MXReturnValue fuse_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    require(!a.flag("metered"), "there is no meter on a GPU: metered must be 0");
    const Slices slices(a, *inputs, 0);
    std::vector<gluon_gc_conversion> all;
    std::size_t at = 0;
    for (std::size_t i = 0; i < slices.sizes.size(); ++i) {
      const Piece gradient(inputs->at(slices.tensors[i]), slices.begins[i]);
      all.push_back(conversion(gradient, Piece(outputs->at(0), at), slices.sizes[i]));
      all.back().scale = a.number("scale");
      if (a.flag("clipped")) all.back().factor = inputs->back().data<double>();
      at += slices.sizes[i];
    }
    check(gluon_gc_convert(all.data(), all.size(), resource.get_cuda_stream()));
  });
}

MXReturnValue defuse_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    require(!metered(a), "there is no meter on a GPU: metered must be 0");
    const Slices slices(a, *inputs, 1);
    const std::vector<std::size_t> checked = a.list("checked");
    MXTensor& values = inputs->at(0);
    require(slices.total == static_cast<std::size_t>(values.size()), "the slices do not have as many values as given");
    auto* const flags = reinterpret_cast<std::uint64_t*>(outputs->at(0).data<std::int64_t>());
    void* const stream = resource.get_cuda_stream();
    check(gluon_gc_clear(flags, slices.sizes.size() * sizeof(*flags), stream));
    std::vector<gluon_gc_conversion> all;
    std::size_t at = 0;
    for (std::size_t i = 0; i < slices.sizes.size(); ++i) {
      const Piece gradient(inputs->at(1 + slices.tensors[i]), slices.begins[i]);
      all.push_back(conversion(Piece(values, at), gradient, slices.sizes[i]));
      if (checked.at(i) != 0) all.back().nonfinite = flags + i;
      at += slices.sizes[i];
    }
    check(gluon_gc_convert(all.data(), all.size(), stream));
  });
}

const auto& fuse_operator = add_operator("gluon_gc_fuse")
                                .setParseAttrs(fuse_arity)
                                .setMutateInputs(fuse_mutates)
                                .setInferType(fuse_type)
                                .setInferShape(fuse_shape)
                                .setForward(fuse, "cpu")
                                .setForward(fuse_on_gpu, "gpu");

const auto& defuse_operator = add_operator("gluon_gc_defuse")
                                  .setParseAttrs(defuse_arity)
                                  .setMutateInputs(defuse_mutates)
                                  .setInferType(defuse_type)
                                  .setInferShape(defuse_shape)
                                  .setForward(defuse, "cpu")
                                  .setForward(defuse_on_gpu, "gpu");

}  // namespace
}  // namespace gluon_gc
