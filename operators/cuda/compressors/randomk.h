// What randomk's kernels are given.
#pragma once

#include "cuda/call.h"

namespace gluon_gc {
namespace cuda {

template <typename T>
struct RandomkEncoding : Encoding<T> {
  Size k;
  T sent_factor;  // multiplies what is sent
  Size* indices;  // k: of the draws; or null, if nothing is kept of them
};

template <typename T>
struct RandomkDecoding : Decoding<T> {
  Size k;
  Size* indices;  // k, with `add`: of the draws,
  T* sums;        // and what they become
};

}  // namespace cuda
}  // namespace gluon_gc
