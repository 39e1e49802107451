// Codecs of compressors: what is alike for all of them.
//
// With feedback that is corrected the ratio of learning rates travels in front of a payload that is aggregated,
// so that the aggregator corrects with the same ratio as the workers. It must be the same in all payloads that are
// decoded together.
#include "core/abi.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "core/codec.h"
#include "core/plan.h"
#include "cuda/clip.h"
#include "cuda/codec.h"
#include "cuda/convert.h"

using namespace gluon_gc;

namespace {

template <typename T>
const Functions<T>& functions_of(const Compressor& compressor);
template <>
const Functions<float>& functions_of(const Compressor& compressor) { return compressor.of_float; }
template <>
const Functions<double>& functions_of(const Compressor& compressor) { return compressor.of_double; }

const Registered& registered(const char* name) {
  const Registered* entry = registry;
  while (entry->name != nullptr && std::strcmp(entry->name, name) != 0) ++entry;
  if (entry->name == nullptr) refuse("there is no compressor '%s'", name);
  return *entry;
}

// Where the kernels of the CPU run; a codec of the GPU has the same sizes on each.
Isa isa_numbered(int isa) { return isa < 0 || isa == gluon_gc_cuda ? best_isa() : static_cast<Isa>(isa); }

Plan plan_of(const Traits& traits, const Options& options, std::size_t n, gluon_gc_dtype dtype) {
  const bool corrected = options.is("ef", "corrected") || options.is("ef", "sparse");
  return {n,
          static_cast<std::size_t>(dtype),
          options.has("ef") || traits.accumulates,
          options.number("mu", 0),
          corrected,
          corrected && !traits.summable ? sizeof(double) : 0,
          {}};
}

const cuda::Compressor& on_gpu(const char* name) {
  const cuda::Compressor* const compressor = registered(name).cuda;
  if (compressor == nullptr) refuse("%s has no kernels for CUDA", name);
  return *compressor;
}

// The source of a compressor's kernels, or another one of operators/cuda.
const char* kernels_on_gpu(const char* name) {
  for (const char* const source : {"clip", "convert"}) {
    if (std::strcmp(name, source) == 0) return source;
  }
  return on_gpu(name).name;
}

}  // namespace

struct gluon_gc_codec : Plan {
  gluon_gc_codec(const char* name, const char* options, std::size_t n, gluon_gc_dtype dtype, int isa)
      : gluon_gc_codec(registered(name), options, n, dtype, isa) {}

  gluon_gc_codec(const Registered& entry, const char* text, std::size_t n, gluon_gc_dtype dtype, int isa)
      : gluon_gc_codec(*entry.compressor[static_cast<int>(isa_numbered(isa))], Options(text), n, dtype) {
    name = entry.name;
    options = text;
    if (isa == gluon_gc_cuda) gpu = std::make_unique<const cuda::Codec>(on_gpu(name), Options(text), *this);
  }

  gluon_gc_codec(const Compressor& compressor, const Options& options, std::size_t n, gluon_gc_dtype dtype)
      : Plan(plan_of(compressor.traits, options, n, dtype)), compressor(compressor) {
    compressor.make(self, options, n);
    with_dtype([&](auto zero) { needs = of<decltype(zero)>().needs(self); });
    if (!feedback) needs.memory[0] = needs.memory[1] = 0;
  }

  // Whether another differs in n alone.
  bool is_like(const gluon_gc_codec& other) const {
    return &compressor == &other.compressor && itemsize == other.itemsize && !gpu == !other.gpu &&
           options == other.options;
  }

  // Such as "onebit of float32 with scaling=True ef=vanilla".
  std::string called() const {
    std::string with = options;
    std::replace(with.begin(), with.end(), '\n', ' ');
    return std::string(name) + (itemsize == sizeof(float) ? " of float32" : " of float64") +
           (gpu ? " on the GPU" : "") + (with.empty() ? "" : " with ") + with.substr(0, with.find_last_not_of(' ') + 1);
  }

  template <typename Body>
  void with_dtype(Body body) const {
    itemsize == sizeof(float) ? body(float{}) : body(double{});
  }

  template <typename T>
  const Functions<T>& of() const {
    return functions_of<T>(compressor);
  }

  // In use, of a message that is valid.
  std::size_t used(const std::uint8_t* message) const {
    if (!compressor.traits.variable) return payload_bytes();
    std::uint32_t length;
    std::memcpy(&length, message + header, sizeof(length));
    return header + length;
  }

  template <typename T>
  void compress(const gluon_gc_call& call, const T* values, double ratio, void* workspace) const {
    std::memcpy(call.payload, &ratio, header);
    Encoding<T> encoding{values,
                         static_cast<T>(call.factor != nullptr ? call.scale * *call.factor : call.scale),
                         mu != 0 ? static_cast<T*>(call.momentum) : nullptr,
                         static_cast<T>(mu),
                         {},
                         static_cast<T>(corrected ? ratio : 1),
                         stream(call.position),
                         call.payload + header,
                         workspace,
                         call.threads};
    for (std::size_t i = 0; i < max_memory && feedback; ++i) encoding.memory[i] = static_cast<T*>(call.memory[i]);
    const bool finite = of<T>().compress(self, encoding);
    if (!finite) {
      of<T>().spoil(self, encoding.payload);
      forget(call);
    }
    if (call.status != nullptr) *call.status = {used(call.payload), finite};
  }

  void forget(const gluon_gc_call& call) const {
    if (mu != 0) std::memset(call.momentum, 0, n * itemsize);
    for (std::size_t i = 0; i < max_memory; ++i) {
      if (needs.memory[i] != 0) std::memset(call.memory[i], 0, needs.memory[i] * itemsize);
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

  // The ratio of learning rates in front of a payload; 1 if none is.
  double ratio_of(const std::uint8_t* payload) const {
    double ratio = 1;
    std::memcpy(&ratio, payload, header);
    return ratio;
  }

  template <typename T>
  void decompress(const gluon_gc_call& call, T* out, bool add, void* workspace) const {
    check_payloads<T>(call);
    of<T>().decompress(self, {call.payloads + header, call.stride, call.count, stream(call.position), out, add,
                              workspace, call.threads});
  }

  template <typename T>
  gluon_gc_status status(const gluon_gc_call& call) const {
    gluon_gc_status status{0, 1};
    for (std::size_t i = 0; i < call.count; ++i) {
      const std::uint8_t* const message = call.payloads + i * call.stride;
      status.bytes += used(message);
      if (!of<T>().finite(self, message + header)) status.finite = 0;
    }
    return status;
  }

  static Stream stream(const gluon_gc_position& position) {
    Stream stream{{position.state[0], position.state[1]}};
    jump(stream, position.draws);
    return stream;
  }

  const Compressor& compressor;
  const char* name;     // as gluon_gc_new was given it, with the options
  std::string options;
  std::unique_ptr<const cuda::Codec> gpu;  // null: it runs on the CPU
  alignas(16) unsigned char self[max_compressor_bytes] = {};
};

namespace {

// Runs the body of a call; an exception becomes its message.
template <typename Body>
const char* guarded(Body body) {
  thread_local std::string message;
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

// Makes some calls: on the GPU all by one function, on the CPU each by body(codec, call, zero of its dtype).
template <typename Body>
void run(const gluon_gc_call* calls, std::size_t count, void (*on_gpu)(const cuda::Jobs&), Body body) {
  cuda::Jobs jobs;
  for (std::size_t i = 0; i < count; ++i) {
    const gluon_gc_codec &codec = *calls[i].codec, &first = *calls[0].codec;
    if (!codec.is_like(first)) {
      refuse("calls that are made together must have codecs that differ in n alone: %zu is %s, 0 is %s", i,
             codec.called().c_str(), first.called().c_str());
    }
    if (codec.gpu) {
      jobs.push_back({*codec.gpu, calls[i]});
    } else {
      codec.with_dtype([&](auto zero) { body(codec, calls[i], zero); });
    }
  }
  if (!jobs.empty()) on_gpu(jobs);
}

template <typename T>
T* const* memory_of(const gluon_gc_call& call) {
  return reinterpret_cast<T* const*>(call.memory);
}

void require_feedback(const gluon_gc_call* calls, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (!calls[i].codec->feedback) refuse("a codec without error feedback has no residual");
  }
}

}  // namespace

const char* gluon_gc_new(const char* name, const char* options, std::size_t n, gluon_gc_dtype dtype, int isa,
                         gluon_gc_codec** codec) {
  return guarded([=] {
    if (dtype != gluon_gc_float32 && dtype != gluon_gc_float64) refuse("the dtype must be float32 or float64");
    *codec = new gluon_gc_codec(name, options, n, dtype, isa);
  });
}

void gluon_gc_free(gluon_gc_codec* codec) { delete codec; }

void gluon_gc_need(const gluon_gc_codec* codec, gluon_gc_needs* needs) {
  const Needs& own = codec->needs;
  *needs = {codec->payload_bytes(),
            {own.memory[0], own.memory[1]},
            codec->mu != 0 ? codec->n : 0,
            codec->gpu ? codec->gpu->workspace_bytes() : codec->sum_bytes() + own.workspace_bytes,
            own.draws,
            codec->compressor.traits.variable ? static_cast<int>(codec->header) : -1};
}

const char* gluon_gc_compressor(std::size_t i, gluon_gc_traits* traits) {
  const Registered& entry = registry[i];
  if (entry.name == nullptr) return nullptr;
  const Traits& own = entry.compressor[0]->traits;
  *traits = {own.draws, own.alike, own.summable, own.accumulates, entry.cuda != nullptr};
  return entry.name;
}

int gluon_gc_best_isa() { return static_cast<int>(best_isa()); }

const char* gluon_gc_cuda_ready(const char* name) {
  return guarded([=] { cuda::require(kernels_on_gpu(name)); });
}

const char* gluon_gc_clear(void* at, std::size_t bytes, void* stream) {
  return guarded([=] { cuda::Queue("", stream).fill_with_zeros(at, bytes); });
}

const char* gluon_gc_cuda_code(const char* name, const void* image) {
  return guarded([=] { cuda::replace(kernels_on_gpu(name), image); });
}

const char* gluon_gc_convert(const gluon_gc_conversion* conversions, std::size_t count, void* stream) {
  return guarded([=] { cuda::convert(conversions, count, stream); });
}

std::size_t gluon_gc_clip_workspace(const gluon_gc_values* arrays, std::size_t count) {
  return cuda::clip_workspace(arrays, count);
}

const char* gluon_gc_clip(const gluon_gc_values* arrays, std::size_t count, const gluon_gc_clipping* how) {
  return guarded([=] { cuda::clip(arrays, count, *how); });
}

const char* gluon_gc_compress(const gluon_gc_call* calls, std::size_t count) {
  return guarded([=] {
    run(calls, count, cuda::compress, [](const gluon_gc_codec& codec, const gluon_gc_call& call, auto zero) {
      using T = decltype(zero);
      codec.compress(call, static_cast<const T*>(call.values), call.ratio, call.workspace);
    });
  });
}

const char* gluon_gc_aggregate(const gluon_gc_call* calls, std::size_t count) {
  return guarded([=] {
    for (std::size_t i = 0; i < count; ++i) {
      if (calls[i].codec->compressor.traits.summable) refuse("payloads that can be summed are not aggregated");
      if (calls[i].count == 0) refuse("there are no payloads to aggregate");
    }
    run(calls, count, cuda::aggregate, [](const gluon_gc_codec& codec, const gluon_gc_call& call, auto zero) {
      using T = decltype(zero);
      T* const sum = static_cast<T*>(call.workspace);
      void* const workspace = static_cast<char*>(call.workspace) + codec.sum_bytes();
      codec.decompress(call, sum, false, workspace);
      codec.compress(call, sum, codec.ratio_of(call.payloads), workspace);
    });
  });
}

const char* gluon_gc_decompress(const gluon_gc_call* calls, std::size_t count) {
  return guarded([=] {
    for (std::size_t i = 0; i < count; ++i) {
      if (calls[i].codec->compressor.traits.summable && calls[i].count != 1) {
        refuse("payloads that can be summed are decompressed one at a time");
      }
    }
    run(calls, count, cuda::decompress, [](const gluon_gc_codec& codec, const gluon_gc_call& call, auto zero) {
      using T = decltype(zero);
      codec.decompress(call, static_cast<T*>(call.values), call.add != 0, call.workspace);
      if (call.status != nullptr) *call.status = codec.status<T>(call);
    });
  });
}

int gluon_gc_valid(const gluon_gc_codec* codec, const std::uint8_t* payload, std::size_t capacity) {
  bool valid = false;
  if (capacity < codec->header) return false;
  codec->with_dtype([&](auto zero) {
    valid = codec->of<decltype(zero)>().valid(codec->self, payload + codec->header, capacity - codec->header);
  });
  return valid;
}

const char* gluon_gc_inspect(const gluon_gc_call* calls, std::size_t count) {
  return guarded([=] {
    for (const gluon_gc_call* call = calls; call != calls + count; ++call) {
      const gluon_gc_codec& codec = *call->codec;
      codec.with_dtype([&](auto zero) {
        codec.check_payloads<decltype(zero)>(*call);
        *call->status = codec.status<decltype(zero)>(*call);
      });
    }
  });
}

const char* gluon_gc_residual(const gluon_gc_call* calls, std::size_t count) {
  return guarded([=] {
    require_feedback(calls, count);
    run(calls, count, cuda::residual, [](const gluon_gc_codec& codec, const gluon_gc_call& call, auto zero) {
      using T = decltype(zero);
      codec.of<T>().residual(codec.self, memory_of<T>(call), static_cast<T*>(call.values));
    });
  });
}

const char* gluon_gc_restore(const gluon_gc_call* calls, std::size_t count) {
  return guarded([=] {
    require_feedback(calls, count);
    run(calls, count, cuda::restore, [](const gluon_gc_codec& codec, const gluon_gc_call& call, auto zero) {
      using T = decltype(zero);
      codec.of<T>().restore(codec.self, static_cast<const T*>(call.values), memory_of<T>(call));
    });
  });
}
