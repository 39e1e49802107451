// randomk: launches the kernels of randomk.cu.
#include "cuda/compressors/randomk/randomk.h"

#include "core/compressors/randomk_config.h"
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Randomk : Launcher {
  Randomk(const Options& options, std::size_t n) : config(options, n), k(config.k) {}

  template <typename T>
  std::size_t workspace_bytes() const {
    return k * (sizeof(Size) + sizeof(T));
  }

  template <typename T>
  RandomkEncoding<T> given(const Encoding<T>& call) const {
    const bool feedback = call.memory[0] != nullptr;
    return {call, k, config.factor<T>(call.n, feedback), feedback ? static_cast<Size*>(call.workspace) : nullptr};
  }

  template <typename T>
  RandomkDecoding<T> given(const Decoding<T>& call) const {
    Size* const indices = static_cast<Size*>(call.workspace);
    return {call, k, indices, reinterpret_cast<T*>(indices + k)};
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<RandomkEncoding<T>>& calls) const {
    const bool feedback = calls[0].memory[0] != nullptr;
    if (feedback || calls[0].momentum != nullptr) queue.launch<T>("randomk_correct", calls);
    queue.launch<T>("randomk_send", calls);
    if (feedback) queue.launch<T>("randomk_clear", calls);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<RandomkDecoding<T>>& calls) const {
    if (any(calls, [](const Decoding<T>& call) { return !call.add; })) queue.launch<T>("randomk_empty", calls);
    queue.launch<T>("randomk_decompress", calls);
    if (any(calls, [](const Decoding<T>& call) { return call.add; })) queue.launch<T>("randomk_store", calls);
  }

  RandomkConfig config;
  Size k;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(randomk, Randomk)

}  // namespace cuda
}  // namespace gluon_gc
