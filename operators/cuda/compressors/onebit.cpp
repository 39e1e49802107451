// onebit: how its kernels are launched.
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Onebit {
  Onebit(const Options& options, std::size_t n) : n(n), scaling(options.flag("scaling")) {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return tree_size(n) * sizeof(double);
  }

  template <typename T>
  void compress(const Queue& queue, const Encoding<T>& call) const {
    queue.launch<T>("onebit_compress", tiles_of(n), call, scaling);
  }

  template <typename T>
  void decompress(const Queue& queue, const Decoding<T>& call) const {
    queue.launch<T>("onebit_decompress", tiles_of(n), call);
  }

  template <typename T>
  void residual(const Queue& queue, T* const* memory, T* out) const {
    queue.launch<T>("onebit_residual", tiles_of(n), n, memory[0], memory[1], out);
  }

  template <typename T>
  void restore(const Queue& queue, const T* residual, T* const* memory) const {
    if (residual != memory[0]) queue.copy(memory[0], residual, n * sizeof(T));
    queue.fill_with_zeros(memory[1], sizeof(T));
  }

  Size n;
  bool scaling;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(onebit, Onebit)

}  // namespace cuda
}  // namespace gluon_gc
