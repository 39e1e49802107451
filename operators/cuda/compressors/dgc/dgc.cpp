// dgc: launches the kernels of dgc.cu.
#include "core/compressors/dgc/config.h"
#include "core/stream.h"
#include "cuda/codec.h"
#include "cuda/compressors/dgc/plan.h"
#include "cuda/compressors/topk/launch.h"

namespace gluon_gc {
namespace cuda {
namespace {

uint32 number(std::size_t x) { return static_cast<uint32>(x); }

DgcPlan plan_of(const DgcConfig& config, std::size_t n) {
  const DgcSample sample = config.samples == n ? DgcSample::all
                           : config.strided    ? DgcSample::strided
                                               : DgcSample::drawn;
  return {number(config.selects),  number(config.top), number(config.samples), 0,
          number(config.stride),   sample,             config.resample,        config.nesterov,
          config.momentum_masking, config.format,      config.upper,           config.lower,
          config.max_norm};
}

struct Dgc : Launcher {
  Dgc(const Options& options, std::size_t n) : Dgc(DgcConfig(options, n), n) {}

  Dgc(const DgcConfig& config, std::size_t n)
      : n(n),
        most(config.most),
        iterations(config.iterations),
        plan(plan_of(config, n)),
        search(search_for(n, config.least_room(n))) {
    search.k = plan.top;
  }

  template <typename T>
  std::size_t workspace_bytes() const {
    return DgcLayout<T>(n, search, plan).bytes(n, plan);
  }

  template <typename T>
  DgcEncoding<T> given(const Encoding<T>& call) const {
    DgcEncoding<T> dgc{call, search, plan};
    if (plan.sample == DgcSample::strided) {
      gluon_gc::Stream stream{{call.stream.state[0], call.stream.state[1]}};
      dgc.plan.start = number(stream() % plan.stride);
      dgc.plan.samples = number((n - dgc.plan.start + plan.stride - 1) / plan.stride);
    }
    return dgc;
  }

  template <typename T>
  DgcDecoding<T> given(const Decoding<T>& call) const {
    return {call, number(plan.format.payload_bytes<T>(most)), plan.format};
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<DgcEncoding<T>>& calls) const {
    const auto sampled = [](const auto& call) { return call.plan.sample != DgcSample::all; };
    const bool adapts = iterations != 0 && any(calls, sampled);
    if (plan.max_norm > 0) queue.launch<T>("dgc_clip", calls);
    queue.launch<T>("dgc_begin", calls);
    queue.launch<T>("dgc_sweep", calls);
    if (any(calls, [](const auto& call) { return call.plan.sample == DgcSample::drawn; })) {
      queue.launch<T>("dgc_draw", calls);
    }
    narrow<T>(queue, "dgc_narrow_sample", calls);
    for (std::size_t i = 0; i < iterations && adapts; ++i) queue.launch<T>("dgc_adapt", calls);
    if (plan.resample && adapts) narrow<T>(queue, "dgc_narrow", calls);
    queue.launch<T>("dgc_count", calls);
    queue.launch<T>("dgc_send", calls);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<DgcDecoding<T>>& calls) const {
    add_up<T>(queue, "dgc", calls);
  }

  Size n, most;
  std::size_t iterations;
  DgcPlan plan;
  Search search;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(dgc, Dgc)

}  // namespace cuda
}  // namespace gluon_gc
