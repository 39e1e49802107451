// onebit: how its kernels are launched.
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Onebit {
  explicit Onebit(const Options& options) : scaling(options.flag("scaling")) {}

  template <typename T>
  std::size_t workspace_bytes(std::size_t n) const {
    return tree_size(n) * sizeof(double);
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<Encoding<T>>& calls) const {
    queue.launch<T>("onebit_compress", calls, scaling);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<Decoding<T>>& calls) const {
    queue.launch<T>("onebit_decompress", calls);
  }

  template <typename T>
  void residual(const Queue& queue, const Calls<Keeping<T>>& calls) const {
    queue.launch<T>("onebit_residual", calls);
  }

  template <typename T>
  void restore(const Queue& queue, const Calls<Keeping<T>>& calls) const {
    for (const Keeping<T>& call : calls) {
      queue.copy(call.memory[0], call.residual, call.n * sizeof(T));
      queue.fill_with_zeros(call.memory[1], sizeof(T));
    }
  }

  bool scaling;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(onebit, Onebit)

}  // namespace cuda
}  // namespace gluon_gc
