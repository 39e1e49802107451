// The functions of the C interface that work on codecs. tools.cpp has the other functions.
#include <exception>
#include <string>

#include "core/abi_codec.h"
#include "cuda/clip.h"
#include "cuda/convert.h"

using namespace gluon_gc;

namespace {

// The source file in operators/cuda that has the kernels of `name`: a compressor, "clip" or "convert".
const char* kernels_on_gpu(const char* name) {
  for (const char* const source : {"clip", "convert"}) {
    if (std::strcmp(name, source) == 0) return source;
  }
  return on_gpu(name).name;
}

// Runs the body of a call. Returns null, or the message of the exception that it throws.
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

// Runs calls. CPU: one body(codec, call, zero) for each call, where the type of zero is the codec's dtype. GPU: one
// on_gpu for all calls.
template <typename Body>
void run(const gluon_gc_call* calls, std::size_t count, void (*on_gpu)(const cuda::Jobs&), Body body) {
  cuda::Jobs jobs;
  for (std::size_t i = 0; i < count; ++i) {
    const gluon_gc_codec &codec = *calls[i].codec, &first = *calls[0].codec;
    if (!codec.is_like(first)) {
      refuse("the codecs of calls that run together may differ in n only: call %zu has %s, call 0 has %s", i,
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
  return reinterpret_cast<T* const*>(call.state.memory);
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
  *traits = {own.draws, own.draws_alike, own.summable, own.accumulates, entry.cuda != nullptr};
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

const char* gluon_gc_clip(const gluon_gc_values* arrays, std::size_t count, const gluon_gc_clipping* clipping) {
  return guarded([=] { cuda::clip(arrays, count, *clipping); });
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
      if (calls[i].codec->compressor.traits.summable) refuse("summable payloads are added, not aggregated");
      if (calls[i].count == 0) refuse("there are no payloads to aggregate");
    }
    run(calls, count, cuda::aggregate, [](const gluon_gc_codec& codec, const gluon_gc_call& call, auto zero) {
      codec.aggregate<decltype(zero)>(call);
    });
  });
}

const char* gluon_gc_decompress(const gluon_gc_call* calls, std::size_t count) {
  return guarded([=] {
    for (std::size_t i = 0; i < count; ++i) {
      if (calls[i].codec->compressor.traits.summable && calls[i].count != 1) {
        refuse("summable payloads are decompressed one at a time");
      }
    }
    run(calls, count, cuda::decompress, [](const gluon_gc_codec& codec, const gluon_gc_call& call, auto zero) {
      using T = decltype(zero);
      codec.decompress(call, static_cast<T*>(call.values), call.add != 0, call.workspace);
      if (call.status != nullptr) *call.status = codec.status<T>(call);
    });
  });
}

std::size_t gluon_gc_used(const gluon_gc_codec* codec, const std::uint8_t* payload, std::size_t capacity) {
  const std::size_t length_end = codec->header + sizeof(std::uint32_t);
  return codec->compressor.traits.variable && capacity < length_end ? length_end : codec->used(payload);
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
