// The operators of codecs on GPUs, which codec.cpp registers.
#pragma once

#include "calls.h"

namespace gluon_gc {

// As compress, aggregate and decompress, but for messages that are not framed, without a meter: "metered=0". They
// queue kernels in MXNet's stream, and read nothing of what is on the GPU.
MXReturnValue compress_on_gpu(const Attributes::Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                              const OpResource&);
MXReturnValue aggregate_on_gpu(const Attributes::Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                               const OpResource&);
MXReturnValue decompress_on_gpu(const Attributes::Map&, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                                const OpResource&);

}  // namespace gluon_gc
