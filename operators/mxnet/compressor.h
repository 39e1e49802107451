// Registers the four operators of a compressor: gluon_gc_NAME_compress, _decompress, _aggregate
// and _residual. A compressor supplies its kernels as a class:
//
//   struct Compressor {
//     static constexpr const char* kName;       // "onebit"
//     static constexpr int kMemory;             // arrays that its error feedback keeps
//     explicit Compressor(const Attributes&);   // its own options
//     template <typename T> std::size_t payload_bytes(std::size_t n) const;
//     template <typename T> void compress(const T* x, std::size_t n, const Feedback<T>&,
//                                         std::uint8_t* payload, int threads) const;
//     template <typename T> void decompress(const std::uint8_t* payload, std::size_t n, T* out,
//                                           int threads) const;
//     template <typename T> void decompress_sum(const std::uint8_t* payloads, std::size_t stride,
//                                               std::size_t count, std::size_t n, T* out,
//                                               int threads) const;
//     template <typename T> void residual(T* const* memory, std::size_t n, T* out) const;
//   };
//
// With corrected error feedback the ratio of learning rates travels in front of the payload, so
// that the aggregator corrects with the same ratio as the workers.
#pragma once

#include <cstring>

#include "operator.h"

namespace gluon_gc {

template <typename T>
struct Feedback {
  T gradient_scale = 1;          // multiplies the gradient first
  T* momentum = nullptr;         // Nesterov's state, or none
  T mu = 0;
  T* const* memory = nullptr;    // the compressor's kMemory arrays, or none: no error feedback
  T ratio = 1;                   // multiplies the residual
};

template <typename Compressor>
class CompressorOperators {
 public:
  static bool add() {
    const std::string prefix = std::string("gluon_gc_") + Compressor::kName;
    add_operator(prefix + "_compress")
        .setParseAttrs(compress_arity)
        .setInferType(to_bytes)
        .setInferShape(compress_shape)
        .setMutateInputs(mutate_state)
        .setForward(compress, "cpu");
    add_operator(prefix + "_aggregate")
        .setParseAttrs(compress_arity)
        .setInferType(aggregate_type)
        .setInferShape(aggregate_shape)
        .setMutateInputs(mutate_state)
        .setForward(aggregate, "cpu");
    add_operator(prefix + "_decompress")
        .setParseAttrs(decompress_arity)
        .setInferType(decompress_type)
        .setInferShape(decompress_shape)
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

  static bool has_memory(const Attributes& a) { return a.has("ef"); }
  static bool has_momentum(const Attributes& a) { return a.has("mu"); }
  static std::size_t header_bytes(const Attributes& a) {
    return a.has("ef") && a.text("ef") == "corrected" ? sizeof(double) : 0;
  }
  static int threads(const Attributes& a) { return static_cast<int>(a.number("threads", 1)); }
  static int state_arrays(const Attributes& a) {
    return (has_momentum(a) ? 1 : 0) + (has_memory(a) ? Compressor::kMemory : 0);
  }

  template <typename T>
  static std::size_t message_bytes(const Attributes& a, std::size_t n) {
    return header_bytes(a) + Compressor(a).template payload_bytes<T>(n);
  }

  static Shape message_shape(const Attributes& a, int dtype, std::size_t n) {
    std::size_t bytes = 0;
    with_dtype(dtype, [&](auto zero) { bytes = message_bytes<decltype(zero)>(a, n); });
    return {static_cast<unsigned int>(bytes)};
  }

  // inputs: x or payloads, then momentum (with mu), then the compressor's memory (with ef)
  static MXReturnValue compress_arity(const Map& map, int* inputs, int* outputs) {
    *inputs = 1 + state_arrays(Attributes(map));
    *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue mutate_state(const Map& map, std::vector<int>* indices) {
    const int count = state_arrays(Attributes(map));
    for (int i = 1; i <= count; ++i) indices->push_back(i);
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue to_bytes(const Map&, Types*, Types* out) {
    out->at(0) = mxnet::ext::kUint8;
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue compress_shape(const Map& map, Shapes* in, Shapes* out) {
    return guarded([&] {
      const Attributes a(map);
      out->at(0) = message_shape(a, dtype_named(a.text("dtype")), elements(in->at(0)));
    });
  }

  template <typename T>
  static Feedback<T> feedback(const Attributes& a, Tensors& inputs, std::size_t n,
                              std::vector<T*>& memory) {
    Feedback<T> f;
    std::size_t next = 1;
    for (std::size_t i = next; i < inputs.size(); ++i) {
      require(inputs[i].dtype == dtype_of<T>(), "a state array has another dtype");
    }
    if (has_momentum(a)) {
      require(static_cast<std::size_t>(inputs[next].size()) == n,
              "the momentum has another size than the gradient");
      f.momentum = inputs[next++].data<T>();
      f.mu = static_cast<T>(a.number("mu"));
    }
    if (has_memory(a)) {
      while (next < inputs.size()) memory.push_back(inputs[next++].data<T>());
      f.memory = memory.data();
    }
    return f;
  }

  static MXReturnValue compress(const Map& map, Tensors* inputs, Tensors* outputs,
                                const OpResource&) {
    return guarded([&] {
      const Attributes a(map);
      MXTensor& x = inputs->at(0);
      with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto n = static_cast<std::size_t>(x.size());
        std::vector<T*> memory;
        Feedback<T> f = feedback<T>(a, *inputs, n, memory);
        const double ratio = a.number("ratio", 1);
        f.gradient_scale = static_cast<T>(a.number("scale", 1));
        f.ratio = static_cast<T>(ratio);
        auto* message = outputs->at(0).data<std::uint8_t>();
        std::memcpy(message, &ratio, header_bytes(a));
        Compressor(a).compress(x.data<T>(), n, f, message + header_bytes(a), threads(a));
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
        auto* sum = static_cast<T*>(resource.alloc_cpu(static_cast<int>(n * sizeof(T))));
        const Compressor compressor(a);
        compressor.decompress_sum(messages + header_bytes(a), stride,
                                  static_cast<std::size_t>(payloads.shape[0]), n, sum, threads(a));
        double ratio = 1;
        std::memcpy(&ratio, messages, header_bytes(a));
        std::vector<T*> memory;
        Feedback<T> f = feedback<T>(a, *inputs, n, memory);
        f.ratio = static_cast<T>(ratio);
        auto* message = outputs->at(0).data<std::uint8_t>();
        std::memcpy(message, &ratio, header_bytes(a));
        compressor.compress(sum, n, f, message + header_bytes(a), threads(a));
      });
    });
  }

  static MXReturnValue decompress_arity(const Map&, int* inputs, int* outputs) {
    *inputs = *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
  }

  static MXReturnValue decompress_type(const Map& map, Types*, Types* out) {
    return guarded([&] { out->at(0) = dtype_named(Attributes(map).text("dtype")); });
  }

  static MXReturnValue decompress_shape(const Map& map, Shapes*, Shapes* out) {
    return guarded([&] { out->at(0) = {static_cast<unsigned int>(Attributes(map).size("n"))}; });
  }

  static MXReturnValue decompress(const Map& map, Tensors* inputs, Tensors* outputs,
                                  const OpResource&) {
    return guarded([&] {
      const Attributes a(map);
      MXTensor& out = outputs->at(0);
      with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto n = static_cast<std::size_t>(out.size());
        require(static_cast<std::size_t>(inputs->at(0).size()) == message_bytes<T>(a, n),
                "the payload is not of the length that " + std::to_string(n) + " elements need");
        Compressor(a).decompress(inputs->at(0).data<std::uint8_t>() + header_bytes(a), n,
                                 out.data<T>(), threads(a));
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
