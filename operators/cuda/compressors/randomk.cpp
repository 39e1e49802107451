// randomk: how its kernels are launched.
#include "cuda/compressors/randomk.h"

#include <algorithm>

#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Randomk : KeepsResidual {
  explicit Randomk(const Options& options)
      : share_or_count(options.number("k")), scaling(!options.has("scaling") || options.flag("scaling")) {}

  Size k(Size n) const { return element_count(share_or_count, n); }

  template <typename T>
  std::size_t workspace_bytes(std::size_t n) const {
    return k(n) * (sizeof(Size) + sizeof(T));
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<Encoding<T>>& calls) const {
    const bool feedback = calls[0].memory[0] != nullptr, sweeps = feedback || calls[0].momentum != nullptr;
    const auto encodings = each(calls, [&](const Encoding<T>& call) {
      const Size count = k(call.n);
      const bool scaled = scaling && !feedback && count != 0;
      return RandomkEncoding<T>{call, count, scaled ? static_cast<T>(call.n) / static_cast<T>(count) : T{1},
                                feedback ? static_cast<Size*>(call.workspace) : nullptr};
    });
    if (sweeps) queue.launch<T>("randomk_correct", encodings);
    queue.launch<T>("randomk_send", encodings);
    if (feedback) queue.launch<T>("randomk_clear", encodings);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<Decoding<T>>& calls) const {
    const auto decodings = each(calls, [&](const Decoding<T>& call) {
      Size* const indices = static_cast<Size*>(call.workspace);
      return RandomkDecoding<T>{call, k(call.n), indices, reinterpret_cast<T*>(indices + k(call.n))};
    });
    const auto adds = [](const Decoding<T>& call) { return call.add; };
    if (!std::all_of(calls.begin(), calls.end(), adds)) queue.launch<T>("randomk_begin", decodings);
    queue.launch<T>("randomk_decompress", decodings);
    if (std::any_of(calls.begin(), calls.end(), adds)) queue.launch<T>("randomk_store", decodings);
  }

  double share_or_count;
  bool scaling;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(randomk, Randomk)

}  // namespace cuda
}  // namespace gluon_gc
