// Registers the operators of a compressor: gluon_gc_NAME_compress, _decompress, _residual and, unless
// payloads are summed as they are, _aggregate.
#pragma once

#include "compressor_state.h"
#include "meter.h"

namespace gluon_gc {

template <typename Compressor>
class CompressorOperators {
 public:
  static bool add() {
    const std::string prefix = std::string("gluon_gc_") + Compressor::kName;
    add_operator(prefix + "_compress")
        .setParseAttrs(compress_arity)
        .setInferType(payload_type)
        .setInferShape(compress_shape)
        .setMutateInputs(mutate_meter_and_state)
        .setForward(compress, "cpu");
    if constexpr (!Compressor::kSummable) {
      add_operator(prefix + "_aggregate")
          .setParseAttrs(aggregate_arity)
          .setInferType(aggregate_type)
          .setInferShape(aggregate_shape)
          .setMutateInputs(mutate_state)
          .setForward(aggregate, "cpu");
    }
    add_operator(prefix + "_decompress")
        .setParseAttrs(decompress_arity)
        .setInferType(decompress_type)
        .setInferShape(decompress_shape)
        .setMutateInputs(mutate_meter)
        .setForward(decompress, "cpu");
    add_operator(prefix + "_residual")
        .setParseAttrs(residual_arity)
        .setInferType(same_type)
        .setInferShape(same_shape)
        .setForward(residual, "cpu");
    return true;
  }

 private:
  using Map = Attributes::Map;
  using Tensors = std::vector<MXTensor>;
  using Shapes = std::vector<Shape>;
  using Types = std::vector<int>;

  template <typename T>
  static std::size_t message_bytes(const Attributes& a, std::size_t n) {
    return header_bytes<Compressor>(a) + Compressor(a).template payload_bytes<T>(n);
  }

  // What is used of a message with room for `most` bytes.
  static std::size_t used_bytes(const Attributes& a, const std::uint8_t* message, std::size_t most) {
    if (!Compressor::kVariable) return most;
    std::uint32_t length;
    std::memcpy(&length, message + header_bytes<Compressor>(a), sizeof(length));
    return header_bytes<Compressor>(a) + length;
  }

  static Shape message_shape(const Attributes& a, int dtype, std::size_t n) {
    std::size_t size = 0;
    with_dtype(dtype, [&](auto zero) {
      using T = decltype(zero);
      size = message_bytes<T>(a, n) / (Compressor::kSummable ? sizeof(T) : 1);
    });
    return {static_cast<unsigned int>(size)};
  }

  // compress: x, the meter, then the state: the stream (if it draws), momentum (with mu), the
  // compressor's memory (with ef)
  static MXReturnValue compress_arity(const Map& map, int* inputs, int* outputs) {
    *inputs = 2 + state_arrays<Compressor>(Attributes(map));
    *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue mutate_meter_and_state(const Map& map, std::vector<int>* indices) {
    const int count = 1 + state_arrays<Compressor>(Attributes(map));
    for (int i = 1; i <= count; ++i) indices->push_back(i);
    return mxnet::ext::MX_SUCCESS;
  }

  // aggregate: payloads, then the state
  static MXReturnValue aggregate_arity(const Map& map, int* inputs, int* outputs) {
    *inputs = 1 + state_arrays<Compressor>(Attributes(map));
    *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue mutate_state(const Map& map, std::vector<int>* indices) {
    const int count = state_arrays<Compressor>(Attributes(map));
    for (int i = 1; i <= count; ++i) indices->push_back(i);
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue payload_type(const Map& map, Types*, Types* out) {
    return guarded([&] {
      out->at(0) = Compressor::kSummable ? dtype_named(Attributes(map).text("dtype"))
                                         : mxnet::ext::kUint8;
    });
  }

  static MXReturnValue compress_shape(const Map& map, Shapes* in, Shapes* out) {
    return guarded([&] {
      const Attributes a(map);
      out->at(0) = message_shape(a, dtype_named(a.text("dtype")), elements(in->at(0)));
    });
  }

  static MXReturnValue compress(const Map& map, Tensors* inputs, Tensors* outputs,
                                const OpResource&) {
    return guarded([&] {
      const double started = Meter::now();
      const Attributes a(map);
      MXTensor& x = inputs->at(0);
      with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto n = static_cast<std::size_t>(x.size());
        State<Compressor, T> state(a, *inputs, 2, n);
        state.feedback.gradient_scale = static_cast<T>(a.number("scale", 1));
        auto* message = reinterpret_cast<std::uint8_t*>(outputs->at(0).data_ptr);
        state.compress(a, x.data<T>(), n, a.number("ratio", 1), message);
        const std::size_t used = used_bytes(a, message, message_bytes<T>(a, n));
        meter(inputs->at(1)).compressed(started, used);
      });
    });
  }

  static MXReturnValue aggregate_type(const Map&, Types* in, Types* out) {
    out->at(0) = in->at(0);
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue aggregate_shape(const Map& map, Shapes*, Shapes* out) {
    return guarded([&] {
      const Attributes a(map);
      out->at(0) = message_shape(a, dtype_named(a.text("dtype")), a.size("n"));
    });
  }

  // Sums the decoded payloads in row order and compresses the sum, with its own error feedback.
  static MXReturnValue aggregate(const Map& map, Tensors* inputs, Tensors* outputs,
                                 const OpResource& resource) {
    return guarded([&] {
      const Attributes a(map);
      MXTensor& payloads = inputs->at(0);
      with_dtype(dtype_named(a.text("dtype")), [&](auto zero) {
        using T = decltype(zero);
        const std::size_t n = a.size("n");
        const std::size_t stride = message_bytes<T>(a, n);
        require(payloads.shape.size() == 2 &&
                    static_cast<std::size_t>(payloads.shape[1]) == stride,
                "the payloads are not of the length that " + std::to_string(n) + " elements need");
        const auto* messages = payloads.data<std::uint8_t>();
        auto* sum = static_cast<T*>(temporary_memory(resource, n * sizeof(T)));
        Compressor(a).decompress_sum(messages + header_bytes<Compressor>(a), stride,
                                     static_cast<std::size_t>(payloads.shape[0]), n, sum,
                                     threads(a));
        double ratio = 1;
        std::memcpy(&ratio, messages, header_bytes<Compressor>(a));
        State<Compressor, T>(a, *inputs, 1, n).compress(a, sum, n, ratio, outputs->at(0).data<std::uint8_t>());
      });
    });
  }

  // payload, the meter, then the stream (if it draws)
  static MXReturnValue decompress_arity(const Map&, int* inputs, int* outputs) {
    *inputs = 2 + Compressor::kDraws;
    *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue mutate_meter(const Map&, std::vector<int>* indices) {
    indices->push_back(1);
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue decompress_type(const Map& map, Types*, Types* out) {
    return guarded([&] { out->at(0) = dtype_named(Attributes(map).text("dtype")); });
  }

  static MXReturnValue decompress_shape(const Map& map, Shapes*, Shapes* out) {
    return guarded([&] { out->at(0) = {static_cast<unsigned int>(Attributes(map).size("n"))}; });
  }

  // The values of a payload, or the sum of those of several, shape (payloads, bytes), in row order.
  static MXReturnValue decompress(const Map& map, Tensors* inputs, Tensors* outputs,
                                  const OpResource&) {
    return guarded([&] {
      const double started = Meter::now();
      const Attributes a(map);
      MXTensor& payload = inputs->at(0);
      MXTensor& out = outputs->at(0);
      with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto n = static_cast<std::size_t>(out.size());
        const std::size_t rows = payload.shape.size() == 2 ? payload.shape[0] : 1;
        const Shape one = message_shape(a, out.dtype, n);
        require(static_cast<std::size_t>(payload.size()) == rows * one[0],
                "the payload is not of the length that " + std::to_string(n) + " elements need");
        const auto* const messages = reinterpret_cast<const std::uint8_t*>(payload.data_ptr);
        const std::size_t stride = message_bytes<T>(a, n), header = header_bytes<Compressor>(a);
        const Compressor compressor(a);
        if constexpr (Compressor::kSummable) {
          require(rows == 1, "payloads that can be summed are decompressed one at a time");
          const Stream start = Compressor::kDraws ? streams(inputs->at(2))[0] : Stream{};
          compressor.decompress(messages + header, n, start, out.data<T>(), threads(a));
        } else {
          compressor.decompress_sum(messages + header, stride, rows, n, out.data<T>(), threads(a));
        }
        std::size_t used = 0;
        bool finite = true;
        for (std::size_t row = 0; row < rows; ++row) {
          const std::uint8_t* const message = messages + row * stride;
          used += used_bytes(a, message, stride);
          finite = finite && compressor.template finite<T>(message + header, n);
        }
        Meter& m = meter(inputs->at(1));
        m.decompressed(started, used);
        if (finite) return;
        m.nonfinite += 1;
        if (!a.has("refused")) return;
        throw std::invalid_argument(m.refusal(a.text("refused")));
      });
    });
  }

  static MXReturnValue residual_arity(const Map&, int* inputs, int* outputs) {
    *inputs = Compressor::kMemory;
    *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue same_type(const Map&, Types* in, Types* out) {
    out->at(0) = in->at(0);
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue same_shape(const Map&, Shapes* in, Shapes* out) {
    out->at(0) = in->at(0);
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue residual(const Map& map, Tensors* inputs, Tensors* outputs,
                                const OpResource&) {
    return guarded([&] {
      MXTensor& out = outputs->at(0);
      with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        std::vector<T*> memory;
        for (MXTensor& array : *inputs) memory.push_back(array.data<T>());
        Compressor(Attributes(map))
            .residual(memory.data(), static_cast<std::size_t>(out.size()), out.data<T>());
      });
    });
  }
};

}  // namespace gluon_gc
