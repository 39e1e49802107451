// The GPU versions of the codec operators, which codec.cpp registers.
#pragma once

#include "calls.h"

namespace gluon_gc {

// The inputs and outputs are those of the CPU versions, but messages are not framed and there is no meter: `metered=0`.
// The functions queue kernels in MXNet's stream. They do not read GPU memory on the host.
MXReturnValue compress_on_gpu(const Attributes::Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                              const OpResource&);
MXReturnValue aggregate_on_gpu(const Attributes::Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                               const OpResource&);
MXReturnValue decompress_on_gpu(const Attributes::Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                                const OpResource&);

}  // namespace gluon_gc
