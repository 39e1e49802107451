// randomk: how its kernels are launched.
#include "cuda/compressors/randomk.h"

#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Randomk : KeepsResidual {
  Randomk(const Options& options, std::size_t n)
      : KeepsResidual{n},
        k(element_count(options.number("k"), n)),
        scaling(!options.has("scaling") || options.flag("scaling")) {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return k * (sizeof(Size) + sizeof(T));
  }

  template <typename T>
  void compress(const Queue& queue, const Encoding<T>& call) const {
    const bool feedback = call.memory[0] != nullptr, scaled = scaling && !feedback && k != 0;
    const RandomkEncoding<T> encoding{call, k, scaled ? static_cast<T>(n) / static_cast<T>(k) : T{1},
                                      feedback ? static_cast<Size*>(call.workspace) : nullptr};
    if (feedback || call.momentum != nullptr) queue.launch<T>("randomk_correct", tiles_of(n), encoding);
    queue.launch<T>("randomk_send", tiles_of(k), encoding);
    if (feedback) queue.launch<T>("randomk_clear", tiles_of(k), encoding);
  }

  template <typename T>
  void decompress(const Queue& queue, const Decoding<T>& call) const {
    Size* const indices = static_cast<Size*>(call.workspace);
    const RandomkDecoding<T> decoding{call, k, indices, reinterpret_cast<T*>(indices + k)};
    if (!call.add) queue.fill_with_zeros(call.out, n * sizeof(T));
    queue.launch<T>("randomk_decompress", tiles_of(k), decoding);
    if (call.add) queue.launch<T>("randomk_store", tiles_of(k), decoding);
  }

  Size k;
  bool scaling;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(randomk, Randomk)

}  // namespace cuda
}  // namespace gluon_gc
