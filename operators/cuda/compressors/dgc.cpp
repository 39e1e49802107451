// dgc: how its kernels are launched.
#include "core/compressors/dgc_config.h"
#include "core/stream.h"
#include "cuda/codec.h"
#include "cuda/compressors/dgc_plan.h"
#include "cuda/compressors/topk_launch.h"

namespace gluon_gc {
namespace cuda {
namespace {

uint32 number(std::size_t x) { return static_cast<uint32>(x); }

DgcPlan plan_of(const DgcConfig& config, std::size_t n) {
  const DgcSample sample = config.samples == n ? DgcSample::all
                           : config.strided    ? DgcSample::strided
                                               : DgcSample::drawn;
  return {number(config.selects), number(config.most),     number(config.top), number(config.samples),
          0,                      number(config.stride),   sample,             config.resample,
          config.nesterov,        config.momentum_masking, config.half_values, config.upper,
          config.lower,           config.max_norm};
}

struct Dgc : KeepsResidual {
  Dgc(const Options& options, std::size_t n) : Dgc(DgcConfig(options, n), n) {}

  Dgc(const DgcConfig& config, std::size_t n)
      : KeepsResidual{n},
        iterations(config.samples == n ? 0 : config.iterations),
        plan(plan_of(config, n)),
        search(search_for(n, config.least_room(n))) {
    search.k = plan.top;
  }

  template <typename T>
  std::size_t workspace_bytes() const {
    return DgcLayout<T>(n, search, plan).bytes(n, plan);
  }

  template <typename T>
  void compress(const Queue& queue, const Encoding<T>& call) const {
    DgcEncoding<T> dgc{call, search, plan, 0};
    if (plan.sample == DgcSample::strided) {
      gluon_gc::Stream stream{{call.stream[0], call.stream[1]}};
      dgc.plan.start = number(stream() % plan.stride);
      dgc.plan.samples = number((n - dgc.plan.start + plan.stride - 1) / plan.stride);
    }
    if (plan.max_norm > 0) queue.launch<T>("dgc_clip", tiles_of(n), dgc);
    queue.launch<T>("dgc_begin", sample_tiles(search), dgc);
    queue.launch<T>("dgc_sweep", tiles_of(n), dgc);
    if (plan.sample == DgcSample::drawn) queue.launch<T>("dgc_draw", plan.samples / tile, dgc);
    launch_digits(queue, "dgc_narrow_sample", tiles_of(dgc.plan.samples), dgc);
    for (std::size_t i = 0; i < iterations; ++i) queue.launch<T>("dgc_adapt", tiles_of(n), dgc);
    if (plan.resample && iterations != 0) launch_digits(queue, "dgc_narrow", tiles_of(n), dgc);
    queue.launch<T>("dgc_count", Parts(n).count, dgc);
    queue.launch<T>("dgc_send", Parts(n).count, dgc);
  }

  template <typename T>
  static void launch_digits(const Queue& queue, const char* name, std::size_t tiles, DgcEncoding<T>& dgc) {
    for (dgc.digit = 0; dgc.digit < digit_count<T>; ++dgc.digit) queue.launch<T>(name, tiles, dgc);
  }

  template <typename T>
  void decompress(const Queue& queue, const Decoding<T>& call) const {
    const auto capacity = number(dgc_payload_bytes<T>(plan.most, plan.half_values));
    DgcDecoding<T> dgc{call, capacity, plan.half_values, 0};
    queue.launch<T>("dgc_begin_sum", call.add ? 0 : tiles_of(n), dgc);
    for (; dgc.number < call.count; ++dgc.number) queue.launch<T>("dgc_add", tiles_of(plan.most), dgc);
  }

  std::size_t iterations;
  DgcPlan plan;
  Search search;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(dgc, Dgc)

}  // namespace cuda
}  // namespace gluon_gc
