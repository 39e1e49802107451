// dithering: how its kernels are launched.
#include "cuda/compressors/dithering.h"

#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

// The fewest elements a lane draws for give the most warps; where there are enough of them, long segments make the
// jump to each a small part of its work.
constexpr uint32 segment_of(Size n) { return n < Size{1} << 23 ? 32 : 256; }

struct Dithering : Launcher {
  Dithering(const Options& options, std::size_t n)
      : n(n),
        segment(segment_of(n)),
        config{static_cast<uint32>(options.count("k")), 1, options.is("partition", "natural"),
               options.is("normalize", "l2")} {
    if (!options.flag("fixed_width")) {
      refuse("dithering for CUDA has payloads of fixed width only: all nodes must have fixed_width=True");
    }
    for (uint32 levels = config.levels; levels != 0; levels >>= 1) ++config.planes;
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
