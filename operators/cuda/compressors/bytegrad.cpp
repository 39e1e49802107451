// bytegrad: how its kernels are launched.
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Bytegrad : KeepsResidual {
  Bytegrad(const Options&, std::size_t n) : KeepsResidual{n} {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return 2 * tiles_of(n) * sizeof(T);
  }

  template <typename T>
  void compress(const Queue& queue, const Encoding<T>& call) const {
    queue.launch<T>("bytegrad_range", tiles_of(n), call);
    queue.launch<T>("bytegrad_quantise", tiles_of(n), call);
  }

  template <typename T>
  void decompress(const Queue& queue, const Decoding<T>& call) const {
    queue.launch<T>("bytegrad_decompress", tiles_of(n), call);
  }
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(bytegrad, Bytegrad)

}  // namespace cuda
}  // namespace gluon_gc
