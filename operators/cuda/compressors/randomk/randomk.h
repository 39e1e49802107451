// The arguments of randomk's kernels.
#pragma once

#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

template <typename T>
struct RandomkEncoding : Encoding<T> {
  Size k;
  T factor;       // multiplies the values that are sent
  Size* indices;  // the k drawn indices; null without feedback
};

template <typename T>
struct RandomkDecoding : Decoding<T> {
  Size k;
  Size* indices;  // with `add`: the k drawn indices
  T* sums;        // with `add`: the new values of these k elements
};

}  // namespace cuda
}  // namespace gluon_gc
