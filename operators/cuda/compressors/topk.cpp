// topk: how its kernels are launched.
#include "cuda/codec.h"
#include "cuda/compressors/topk_launch.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Topk : KeepsResidual {
  Topk(const Options& options, std::size_t n)
      : KeepsResidual{n}, search(search_for(n, element_count(options.number("k"), n))) {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return SearchLayout<T>(n, search).bytes;
  }

  template <typename T>
  void compress(const Queue& queue, const Encoding<T>& call) const {
    TopkEncoding<T> topk{call, search, 0};
    queue.launch<T>("topk_begin", sample_tiles(search), topk);
    queue.launch<T>("topk_sweep", tiles_of(n), topk);
    for (; topk.digit < digit_count<T>; ++topk.digit) queue.launch<T>("topk_narrow", tiles_of(n), topk);
    queue.launch<T>("topk_count", Parts(n).count, topk);
    queue.launch<T>("topk_send", Parts(n).count, topk);
  }

  template <typename T>
  void decompress(const Queue& queue, const Decoding<T>& call) const {
    queue.launch<T>("topk_begin_sum", call.add ? 0 : tiles_of(n), call);
    for (TopkDecoding<T> topk{call, search.k, 0}; topk.number < call.count; ++topk.number) {
      queue.launch<T>("topk_add", tiles_of(search.k), topk);
    }
  }

  Search search;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(topk, Topk)

}  // namespace cuda
}  // namespace gluon_gc
