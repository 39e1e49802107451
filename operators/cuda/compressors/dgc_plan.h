// What the kernels of dgc are given. For host and device.
#pragma once

#include "cuda/compressors/topk_plan.h"

namespace gluon_gc {
namespace cuda {

enum class DgcSample { all, strided, drawn };

// What DgcConfig of core/compressors/dgc_config.h says, and where the sample is.
struct DgcPlan {
  uint32 selects, most, top;
  uint32 samples;        // elements of the sample
  uint32 start, stride;  // of a strided one
  DgcSample sample;
  bool resample, nesterov, momentum_masking, half_values;
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
  uint32 capacity;  // bytes of a payload, at most
  bool half_values;
};

// What dgc keeps beside SearchState, whose limit is the threshold.
template <typename T>
struct DgcState {
  T shortening;     // of the gradient, by clipping
  uint32 reaching;  // elements that reach the threshold
  uint32 settled;   // whether the threshold stays
  uint32 largest;   // whether the largest are sent, rather than the first that reach the threshold
};

// Where things are in the workspace, in bytes.
template <typename T>
struct DgcLayout {
  constexpr DgcLayout(Size n, const Search& search, const DgcPlan& plan)
      : state(SearchLayout<T>(n, search).bytes),
        sample(state + 64),
        sums(sample + (plan.sample == DgcSample::drawn ? (plan.samples * sizeof(T) + 7) / 8 * 8 : 0)) {}

  // All of it.
  constexpr Size bytes(Size n, const DgcPlan& plan) const {
    return sums + (plan.max_norm > 0 ? tree_size(n) * sizeof(double) : 0);
  }

  Size state;   // behind the search
  Size sample;  // that is drawn
  Size sums;    // of the norm
};

}  // namespace cuda
}  // namespace gluon_gc
