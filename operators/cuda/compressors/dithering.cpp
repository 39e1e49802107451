// dithering: how its kernels are launched.
#include "cuda/compressors/dithering.h"

#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

// Short segments make many warps; where there are enough of them, long ones make the jump there a small part of what
// a lane does.
uint32 segment_of(Size n) {
  uint32 segment = 32;
  while (segment < 256 && chunks_of(n, segment) > 2048) segment *= 2;
  return segment;
}

uint32 chunks(Size n) { return chunks_of(n, segment_of(n)); }

struct Dithering : KeepsResidual {
  explicit Dithering(const Options& options)
      : config{static_cast<uint32>(options.count("k")), 1, options.is("partition", "natural"),
               options.is("normalize", "l2")} {
    if (!options.flag("fixed_width")) {
      refuse("dithering for CUDA has payloads of fixed width only: all nodes must have fixed_width=True");
    }
    for (uint32 levels = config.levels; levels != 0; levels >>= 1) ++config.planes;
  }

  template <typename T>
  std::size_t workspace_bytes(std::size_t n) const {
    return chunks(n) * sizeof(RandomStream) + tree_size(n) * sizeof(double);
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<Encoding<T>>& calls) const {
    const auto encodings = each(calls, [&](const Encoding<T>& call) {
      RandomStream* const streams = static_cast<RandomStream*>(call.workspace);
      double* const sums = reinterpret_cast<double*>(streams + chunks(call.n));
      return DitheringEncoding<T>{call, segment_of(call.n), streams, sums};
    });
    queue.launch<T>("dithering_norm", encodings, config);
    queue.launch<T>("dithering_quantise", encodings, config);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<Decoding<T>>& calls) const {
    queue.launch<T>("dithering_decompress", calls, config);
  }

  DitheringConfig config;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(dithering, Dithering)

}  // namespace cuda
}  // namespace gluon_gc
