// randomk: how its kernels are launched.
#include "cuda/compressors/randomk.h"

#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Randomk : KeepsResidual {
  explicit Randomk(const Options& options)
      : k(options.number("k")), scaling(!options.has("scaling") || options.flag("scaling")) {}

  template <typename T>
  std::size_t workspace_bytes(std::size_t n) const {
    return element_count(k, n) * (sizeof(Size) + sizeof(T));
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<Encoding<T>>& calls) const {
    const bool feedback = calls[0].memory[0] != nullptr, momentum = calls[0].momentum != nullptr;
    const auto encodings = each(calls, [&](const Encoding<T>& call) {
      const Size sent = element_count(k, call.n);
      const bool scaled = scaling && !feedback && sent != 0;
      return RandomkEncoding<T>{call, sent, scaled ? static_cast<T>(call.n) / static_cast<T>(sent) : T{1},
                                feedback ? static_cast<Size*>(call.workspace) : nullptr};
    });
    if (feedback || momentum) queue.launch<T>("randomk_correct", encodings);
    queue.launch<T>("randomk_send", encodings);
    if (feedback) queue.launch<T>("randomk_clear", encodings);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<Decoding<T>>& calls) const {
    const auto decodings = each(calls, [&](const Decoding<T>& call) {
      const Size sent = element_count(k, call.n);
      Size* const indices = static_cast<Size*>(call.workspace);
      return RandomkDecoding<T>{call, sent, indices, reinterpret_cast<T*>(indices + sent)};
    });
    if (any(calls, [](const Decoding<T>& call) { return !call.add; })) queue.launch<T>("randomk_empty", decodings);
    queue.launch<T>("randomk_decompress", decodings);
    if (any(calls, [](const Decoding<T>& call) { return call.add; })) queue.launch<T>("randomk_store", decodings);
  }

  double k;
  bool scaling;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(randomk, Randomk)

}  // namespace cuda
}  // namespace gluon_gc
