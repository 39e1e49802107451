// The arguments of dgc's kernels. For host and device.
#pragma once

#include "cuda/compressors/topk/plan.h"

namespace gluon_gc {
namespace cuda {

enum class DgcSample : uint8 { all, strided, drawn };

// DgcConfig of core/compressors/dgc/config.h, and where the sample lies.
struct DgcPlan {
  uint32 selects, top;
  uint32 samples;        // elements of the sample
  uint32 start, stride;  // of a strided sample
  DgcSample sample;
  bool resample, nesterov, momentum_masking;
  SparseFormat format;
  double upper, lower;
  double max_norm;
};

template <typename T>
struct DgcEncoding : Encoding<T> {
  Search search;
  DgcPlan plan;
};

template <typename T>
struct DgcDecoding : Decoding<T> {
  uint32 capacity;  // the maximum bytes of a payload
  SparseFormat format;
};

// The state of dgc beside SearchState, whose limit is the threshold.
template <typename T>
struct DgcState {
  T shortening;     // the clipping factor of the gradient
  uint32 reaching;  // elements that reach the threshold
  uint32 settled;   // whether the threshold is final
  uint32 largest;   // whether the largest elements are sent; else the first ones that reach the threshold
};

// Byte offsets in the workspace.
template <typename T>
struct DgcLayout {
  constexpr DgcLayout(Size n, const Search& search, const DgcPlan& plan)
      : state(SearchLayout<T>(n, search).bytes),
        sample(state + 64),
        sums(sample + (plan.sample == DgcSample::drawn ? (plan.samples * sizeof(T) + 7) / 8 * 8 : 0)) {}

  // The size of the workspace.
  constexpr Size bytes(Size n, const DgcPlan& plan) const {
    return sums + (plan.max_norm > 0 ? tree_size(n) * sizeof(double) : 0);
  }

  Size state;   // a DgcState, behind the memory of the search
  Size sample;  // the drawn elements
  Size sums;    // the tree of sums for the norm
};

}  // namespace cuda
}  // namespace gluon_gc
