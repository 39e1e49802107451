// The codec behind the C interface: a compressor with its options, for n elements of one dtype.
//
// A payload of the C interface is a header and the payload of the compressor:
//
//   [ratio: float64] [payload of the compressor]
//
// The header is there with "corrected" error feedback only, and not for summable compressors. It holds the ratio of
// learning rates, so that the aggregator corrects with the ratio of the workers. All payloads that are decoded together
// must have the same ratio.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "core/abi.h"
#include "core/codec.h"
#include "core/plan.h"
#include "cuda/codec.h"

namespace gluon_gc {

template <typename T>
const Functions<T>& functions_of(const Compressor& compressor);
template <>
inline const Functions<float>& functions_of(const Compressor& compressor) { return compressor.of_float; }
template <>
inline const Functions<double>& functions_of(const Compressor& compressor) { return compressor.of_double; }

inline const Registered& registered(const char* name) {
  const Registered* entry = registry;
  while (entry->name != nullptr && std::strcmp(entry->name, name) != 0) ++entry;
  if (entry->name == nullptr) refuse("there is no compressor '%s'", name);
  return *entry;
}

// The instruction set of the CPU for a codec. A CUDA codec has one too, for sizes and gluon_gc_inspect.
inline Isa isa_numbered(int number, gluon_gc_dtype dtype) {
  const Isa isa = number < 0 || number == gluon_gc_cuda ? best_isa() : static_cast<Isa>(number);
  return dtype == gluon_gc_float64 ? isa_of_doubles(isa) : isa;
}

inline Plan plan_of(const Traits& traits, const Options& options, std::size_t n, gluon_gc_dtype dtype) {
  const bool corrected = options.is("ef", "corrected") || options.is("ef", "sparse");
  const double decay = options.number("ef_decay", 1);
  if (!(decay > 0 && decay <= 1)) refuse("ef_decay must be above 0 and at most 1, got %g", decay);
  return {n,
          static_cast<std::size_t>(dtype),
          options.has("ef") || traits.accumulates,
          options.number("mu", 0),
          corrected,
          decay,
          corrected && !traits.summable ? sizeof(double) : 0,
          {}};
}

inline const cuda::Compressor& on_gpu(const char* name) {
  const cuda::Compressor* const compressor = registered(name).cuda;
  if (compressor == nullptr) refuse("%s has no kernels for CUDA", name);
  return *compressor;
}

struct Codec : Plan {
  Codec(const char* name, const char* options, std::size_t n, gluon_gc_dtype dtype, int isa)
      : Codec(registered(name), options, n, dtype, isa) {}

  Codec(const Registered& entry, const char* text, std::size_t n, gluon_gc_dtype dtype, int isa)
      : Codec(*entry.compressor[static_cast<int>(isa_numbered(isa, dtype))], Options(text), n, dtype) {
    name = entry.name;
    options = text;
    if (isa == gluon_gc_cuda) gpu = std::make_unique<const cuda::Codec>(on_gpu(name), Options(text), *this);
  }

  Codec(const Compressor& compressor, const Options& options, std::size_t n, gluon_gc_dtype dtype)
      : Plan(plan_of(compressor.traits, options, n, dtype)), compressor(compressor) {
    compressor.make(self, options, n);
    with_dtype([&](auto zero) { needs = of<decltype(zero)>().needs(self); });
    if (!feedback) needs.memory[0] = needs.memory[1] = 0;
  }

  // Whether another codec differs in n only.
  bool is_like(const Codec& other) const {
    return &compressor == &other.compressor && itemsize == other.itemsize && !gpu == !other.gpu &&
           options == other.options;
  }

  // A description for messages, for example "onebit of float32 with scaling=True ef=vanilla".
  std::string called() const {
    std::string text = options;
    std::replace(text.begin(), text.end(), '\n', ' ');
    return std::string(name) + (itemsize == sizeof(float) ? " of float32" : " of float64") +
           (gpu ? " on the GPU" : "") + (text.empty() ? "" : " with ") + text.substr(0, text.find_last_not_of(' ') + 1);
  }

  template <typename Body>
  void with_dtype(Body body) const {
    itemsize == sizeof(float) ? body(float{}) : body(double{});
  }

  template <typename T>
  const Functions<T>& of() const {
    return functions_of<T>(compressor);
  }

  // The number of bytes of a payload that are in use, as the length in it says.
  std::size_t used(const std::uint8_t* payload) const {
    if (!compressor.traits.variable) return payload_bytes();
    std::uint32_t length;
    std::memcpy(&length, payload + header, sizeof(length));
    return header + length;
  }

  template <typename T>
  void compress(const gluon_gc_call& call, const T* values, double ratio, void* workspace) const {
    encode(call, values, ratio, workspace, [=](const Encoding<T>& encoding) {
      return of<T>().compress(self, encoding);
    });
  }

  template <typename T>
  void aggregate(const gluon_gc_call& call) const {
    check_payloads<T>(call);
    T* const sum = static_cast<T*>(call.workspace);
    void* const workspace = static_cast<char*>(call.workspace) + sum_bytes();
    const Decoding<T> payloads = decoding(call, sum, false, workspace);
    encode<T>(call, sum, ratio_of(call.payloads), workspace, [&](const Encoding<T>& encoding) {
      if (of<T>().aggregate != nullptr) return of<T>().aggregate(self, payloads, encoding);
      of<T>().decompress(self, payloads);
      return of<T>().compress(self, encoding);
    });
  }

  // Calls run(encoding), which writes the payload and returns whether the elements are finite.
  template <typename T, typename Run>
  void encode(const gluon_gc_call& call, const T* values, double ratio, void* workspace, Run run) const {
    std::memcpy(call.payload, &ratio, header);
    const gluon_gc_state& earlier = earlier_of(call);
    Encoding<T> encoding{values,
                         static_cast<T>(call.factor != nullptr ? call.scale * *call.factor : call.scale),
                         mu != 0 ? static_cast<const T*>(earlier.momentum) : nullptr,
                         mu != 0 ? static_cast<T*>(call.state.momentum) : nullptr,
                         static_cast<T>(mu),
                         {},
                         {},
                         static_cast<T>((corrected ? ratio : 1) * decay),
                         stream(call.position),
                         call.payload + header,
                         workspace,
                         call.threads};
    for (std::size_t i = 0; i < max_memory && feedback; ++i) {
      encoding.earlier_memory[i] = static_cast<const T*>(earlier.memory[i]);
      encoding.memory[i] = static_cast<T*>(call.state.memory[i]);
    }
    const bool finite = run(encoding);
    if (!finite) {
      of<T>().spoil(self, encoding.payload);
      forget(call);
    }
    if (call.status != nullptr) *call.status = {used(call.payload), finite};
  }

  // Resets momentum and the memory of error feedback to zeros.
  void forget(const gluon_gc_call& call) const {
    if (mu != 0) std::memset(call.state.momentum, 0, n * itemsize);
    for (std::size_t i = 0; i < max_memory; ++i) {
      if (needs.memory[i] != 0) std::memset(call.state.memory[i], 0, needs.memory[i] * itemsize);
    }
  }

  template <typename T>
  void check_payloads(const gluon_gc_call& call) const {
    if (call.count > 1 && call.stride < payload_bytes()) {
      refuse("payloads of %zu elements take %zu bytes, not %zu", n, payload_bytes(), call.stride);
    }
    for (std::size_t i = 0; i < call.count; ++i) {
      const std::uint8_t* const payload = call.payloads + i * call.stride;
      if (!of<T>().valid(self, payload + header, needs.payload_bytes)) {
        refuse("payload %zu is not one of %zu elements", i, n);
      }
      if (std::memcmp(payload, call.payloads, header) != 0) {
        refuse("the learning rates of workers differ: the previous one over the current one is %g for payload %zu, "
               "but %g for payload 0",
               ratio_of(payload), i, ratio_of(call.payloads));
      }
    }
  }

  // The ratio of learning rates in the header of a payload; 1 if there is no header.
  double ratio_of(const std::uint8_t* payload) const {
    double ratio = 1;
    std::memcpy(&ratio, payload, header);
    return ratio;
  }

  template <typename T>
  void decompress(const gluon_gc_call& call, T* out, bool add, void* workspace) const {
    check_payloads<T>(call);
    of<T>().decompress(self, decoding(call, out, add, workspace));
  }

  template <typename T>
  Decoding<T> decoding(const gluon_gc_call& call, T* out, bool add, void* workspace) const {
    return {call.payloads + header, call.stride, call.count, stream(call.position), out, add, workspace, call.threads};
  }

  template <typename T>
  gluon_gc_status status(const gluon_gc_call& call) const {
    gluon_gc_status status{0, 1};
    for (std::size_t i = 0; i < call.count; ++i) {
      const std::uint8_t* const payload = call.payloads + i * call.stride;
      status.bytes += used(payload);
      if (!of<T>().finite(self, payload + header)) status.finite = 0;
    }
    return status;
  }

  // The state before a call.
  static const gluon_gc_state& earlier_of(const gluon_gc_call& call) {
    return call.earlier != nullptr ? *call.earlier : call.state;
  }

  static Stream stream(const gluon_gc_position& position) {
    Stream stream{{position.state[0], position.state[1]}};
    jump(stream, position.draws);
    return stream;
  }

  const Compressor& compressor;
  const char* name;
  std::string options;
  std::unique_ptr<const cuda::Codec> gpu;  // null: a CPU codec
  // The object of the compressor's class.
  alignas(16) unsigned char self[max_compressor_bytes] = {};
};

}  // namespace gluon_gc

struct gluon_gc_codec : gluon_gc::Codec {
  using Codec::Codec;
};
