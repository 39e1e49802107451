// dithering: launches the kernels of dithering.cu.
#include "cuda/compressors/dithering/dithering.h"

#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

// The draws of a segment. Short segments give work to many warps. If there are enough chunks, segments are longer, so
// that the jump to a segment is a small part of a lane's work.
uint32 segment_of(Size n) {
  uint32 segment = 32;
  while (segment < 256 && chunks_of(n, segment) > 2048) segment *= 2;
  return segment;
}

struct Dithering : Launcher {
  Dithering(const Options& options, std::size_t n)
      : n(n),
        segment(segment_of(n)),
        config{static_cast<uint32>(options.count("k")), plane_count(static_cast<uint32>(options.count("k"))),
               options.is("partition", "natural"), options.is("normalize", "l2"), options.flag("fixed_width")} {
    if (!config.fixed_width) {
      refuse("dithering for CUDA needs payloads of fixed width: all nodes must have fixed_width=True");
    }
  }

  template <typename T>
  std::size_t workspace_bytes() const {
    return chunks_of(n, segment) * sizeof(RandomStream) + tree_size(n) * sizeof(double);
  }

  using Launcher::given;
  template <typename T>
  DitheringEncoding<T> given(const Encoding<T>& call) const {
    RandomStream* const streams = static_cast<RandomStream*>(call.workspace);
    return {call, config, segment, streams, reinterpret_cast<double*>(streams + chunks_of(n, segment))};
  }

  template <typename T>
  void compress(const Queue& queue, const Calls<DitheringEncoding<T>>& calls) const {
    queue.launch<T>("dithering_norm", calls);
    queue.launch<T>("dithering_quantise", calls);
  }

  template <typename T>
  void decompress(const Queue& queue, const Calls<Decoding<T>>& calls) const {
    queue.launch<T>("dithering_decompress", calls, config);
  }

  Size n;
  uint32 segment;
  DitheringConfig config;
};

}  // namespace

GLUON_GC_CUDA_COMPRESSOR(dithering, Dithering)

}  // namespace cuda
}  // namespace gluon_gc
