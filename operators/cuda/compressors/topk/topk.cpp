// topk: launches the kernels of topk.cu.
#include "core/compressors/sparse/config.h"
#include "cuda/codec.h"
#include "cuda/compressors/topk/launch.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Topk : Launcher {
  Topk(const Options& options, std::size_t n)
      : n(n),
        search(search_for(n, element_count(options.number("k"), n))),
        format(sparse_format(options, n, search.k, 0)) {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return SearchLayout<T>(n, search).bytes;
  }

  template <typename T>
  TopkEncoding<T> given(const Encoding<T>& call) const {
    return {call, search, format};
  }

  template <typename T>
  TopkDecoding<T> given(const Decoding<T>& call) const {
    return {call, search.k, format};
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<TopkEncoding<T>>& calls) const {
    queue.launch<T>("topk_begin", calls);
    queue.launch<T>("topk_sweep", calls);
    narrow<T>(queue, "topk_narrow", calls);
    queue.launch<T>("topk_count", calls);
    queue.launch<T>("topk_send", calls);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<TopkDecoding<T>>& calls) const {
    add_up<T>(queue, "topk", calls);
  }

  Size n;
  Search search;
  SparseFormat format;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(topk, Topk)

}  // namespace cuda
}  // namespace gluon_gc
