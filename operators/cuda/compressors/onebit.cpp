// onebit: launches the kernels of onebit.cu.
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Onebit : Launcher {
  Onebit(const Options& options, std::size_t n) : n(n), scaling(options.flag("scaling")) {}

  template <typename T>
  std::size_t workspace_bytes() const {
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

  Size n;
  bool scaling;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(onebit, Onebit)

}  // namespace cuda
}  // namespace gluon_gc
