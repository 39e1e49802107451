// blocktopk: launches the kernels of blocktopk.cu.
#include "cuda/compressors/blocktopk/blocktopk.h"

#include "core/compressors/blocktopk/config.h"
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

// A thread block takes a block of elements.
template <typename T>
Size most_thread_blocks(const BlocktopkEncoding<T>& call) {
  return call.format.blocks();
}
template <typename T>
Size most_thread_blocks(const BlocktopkDecoding<T>& call) {
  return call.format.blocks();
}

struct Blocktopk : Launcher {
  Blocktopk(const Options& options, std::size_t n) : format(blocktopk_format(options, n)) {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return 0;
  }

  template <typename T>
  BlocktopkEncoding<T> given(const Encoding<T>& call) const {
    return {call, format};
  }

  template <typename T>
  BlocktopkDecoding<T> given(const Decoding<T>& call) const {
    return {call, format};
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<BlocktopkEncoding<T>>& calls) const {
    queue.launch<T>("blocktopk_compress", calls);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<BlocktopkDecoding<T>>& calls) const {
    queue.launch<T>("blocktopk_decompress", calls);
  }

  BlocktopkFormat format;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(blocktopk, Blocktopk)

}  // namespace cuda
}  // namespace gluon_gc
