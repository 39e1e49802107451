// The arguments of kernels. For host and device.
#pragma once

#include "core/generator.h"
#include "core/host_device.h"
#include "core/sum_tree.h"

namespace gluon_gc {
namespace cuda {

// The same as gluon_gc_status.
struct Status {
  uint64 bytes, finite;
};

// The random stream, at the position of a call. In this namespace, Stream is a stream of the driver.
using RandomStream = gluon_gc::Stream;

// The argument of compress. p is g = gradient * scale_of(call) after momentum and feedback (correction.cuh).
template <typename T>
struct Encoding {
  Size n;
  const T* gradient;
  double scale;
  const double* scale_by;   // multiplies the scale; may be null
  const T* earlier_momentum;   // n elements, or null: the momentum before the call
  T* momentum;                 // output; may be earlier_momentum
  T mu;
  const T* earlier_memory[2];  // null without feedback
  T* memory[2];                // output; may be earlier_memory. The first array has n elements
  uint32 second_elements;      // of memory[1]
  uint32 header;               // bytes before the payload, for the ratio; or 0
  double ratio;                // multiplies the residual
  const uint8* ratio_from;     // if not null, the ratio is read from here; at any address
  double decay;                // multiplies the residual too
  uint8* payload;              // at any address
  Size bytes;                  // of the header and the payload, at most
  Status* status;           // may be null
  RandomStream stream;
  uint32* ticket;           // used by this call only; zeros before and after it: grid.cuh, settle.cuh
  void* workspace;
};

// The argument of decompress: out = D(payload 0) + D(payload 1) + ..., added in this order in T. With `add`, the sum
// starts from out. Payloads are at any address.
template <typename T>
struct Decoding {
  Size n;
  const uint8* payloads;
  Size stride, count;
  T* out;
  bool add;
  Size bytes;           // of all messages, at most
  Status* status;       // may be null
  RandomStream stream;  // at the position that compress had
  uint32* ticket;       // as in Encoding
  void* workspace;
};

// The argument of residual and restore.
template <typename T>
struct Keeping {
  Size n;
  T* memory[2];
  T* residual;
};

// The argument of convert, as gluon_gc_conversion: to = from * scale * factor.
struct Conversion {
  const void* from;
  void* to;
  Size n;
  int from_itemsize, to_itemsize;
  double scale;
  const double* factor;  // or null: 1
  uint64* nonfinite;     // or null
};

// The argument of clip_squares, which sums the squares of an array.
struct Squares {
  const void* x;
  Size n;
  int itemsize;
  double* sums;  // of its tiles: tree_size(n)
  double* sum;   // the result
  uint32* ticket;
};

// The argument of clip_factor: factor = min(1, most / norm), norm = scale * sqrt(squares[0] + ... + squares[n - 1]).
struct Norm {
  const double* squares;
  Size n;
  double scale, most;
  double* factor;
};

// The first parameter of a kernel: one call for each y of its grid. A kernel's parameters have at most 4,096 bytes;
// 96 of them are left for parameters that all calls share.
template <typename Call>
struct Batch {
  static constexpr Size most = 4000 / sizeof(Call);
  Call call[most];
};

// Threads of a block; blocks that a multiprocessor is to run at a time, which leaves 64 registers to a thread; elements
// that a warp takes at a time.
constexpr int block_threads = 256, blocks_together = 4, tile = sum_tile;

}  // namespace cuda
}  // namespace gluon_gc
