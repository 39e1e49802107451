// bytegrad: launches the kernels of bytegrad.cu.
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Bytegrad : Launcher {
  Bytegrad(const Options&, std::size_t n) : n(n) {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return 2 * tiles_of(n) * sizeof(T);
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<Encoding<T>>& calls) const {
    queue.launch<T>("bytegrad_range", calls);
    queue.launch<T>("bytegrad_quantise", calls);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<Decoding<T>>& calls) const {
    queue.launch<T>("bytegrad_decompress", calls);
  }

  Size n;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(bytegrad, Bytegrad)

}  // namespace cuda
}  // namespace gluon_gc
