// The function that MXNet calls when it loads the library.
#include "operator.h"

__attribute__((visibility("default"))) mxnet::ext::MXReturnValue initialize(int version) {
  constexpr int kOldest = 10901;  // 1.9.1, as major * 10000 + minor * 100 + patch
  if (version >= kOldest) return mxnet::ext::MX_SUCCESS;
  MX_ERROR_MSG << "gluon_gc: MXNet 1.9.1 or newer is needed, got version " << version;
  return mxnet::ext::MX_FAIL;
}
