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

struct Dithering : KeepsResidual {
  Dithering(const Options& options, std::size_t n)
      : KeepsResidual{n},
        config{static_cast<uint32>(options.count("k")), 1, options.is("partition", "natural"),
               options.is("normalize", "l2")} {
    if (!options.flag("fixed_width")) {
      refuse("dithering for CUDA has payloads of fixed width only: all nodes must have fixed_width=True");
    }
    for (uint32 levels = config.levels; levels != 0; levels >>= 1) ++config.planes;
  }

  Size chunks() const { return chunks_of(n, segment_of(n)); }

  template <typename T>
  std::size_t workspace_bytes() const {
    return chunks() * sizeof(RandomStream) + tree_size(n) * sizeof(double);
  }

  template <typename T>
  void compress(const Queue& queue, const Encoding<T>& call) const {
    RandomStream* const streams = static_cast<RandomStream*>(call.workspace);
    double* const sums = reinterpret_cast<double*>(streams + chunks());
    const DitheringEncoding<T> encoding{call, config, segment_of(n), streams, sums};
    queue.launch<T>("dithering_norm", tiles_of(n), encoding);
    queue.launch<T>("dithering_quantise", chunks(), encoding);
  }

  template <typename T>
  void decompress(const Queue& queue, const Decoding<T>& call) const {
    queue.launch<T>("dithering_decompress", tiles_of(n), DitheringDecoding<T>{call, config});
  }

  DitheringConfig config;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(dithering, Dithering)

}  // namespace cuda
}  // namespace gluon_gc
