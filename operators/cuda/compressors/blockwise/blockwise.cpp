// blockwise: launches the kernels of blockwise.cu.
#include "cuda/compressors/blockwise/blockwise.h"

#include "core/compressors/blockwise/config.h"
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Blockwise : Launcher {
  Blockwise(const Options& options, std::size_t n) : format(blockwise_format(options, n)) {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return 0;
  }

  template <typename T>
  BlockwiseEncoding<T> given(const Encoding<T>& call) const {
    return {call, format};
  }

  template <typename T>
  BlockwiseDecoding<T> given(const Decoding<T>& call) const {
    return {call, format};
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<BlockwiseEncoding<T>>& calls) const {
    queue.launch<T>("blockwise_compress", calls);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<BlockwiseDecoding<T>>& calls) const {
    queue.launch<T>("blockwise_decompress", calls);
  }

  BlockwiseFormat format;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(blockwise, Blockwise)

}  // namespace cuda
}  // namespace gluon_gc
