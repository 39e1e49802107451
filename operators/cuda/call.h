// What kernels are given. For host and device.
#pragma once

#include "core/generator.h"
#include "core/host_device.h"
#include "core/sum_tree.h"

namespace gluon_gc {
namespace cuda {

// gluon_gc_status.
struct Status {
  uint64 bytes, finite;
};

// The random stream, from where a call draws. A Stream of this namespace is the driver's.
using RandomStream = gluon_gc::Stream;

// What compress is given: p is g = gradient * scale_of (correction.cuh) after momentum and feedback.
template <typename T>
struct Encoding {
  Size n;
  const T* gradient;
  double scale;
  const double* scale_by;   // or null; it multiplies the scale
  T* momentum;              // n, or null
  T mu;
  T* memory[2];             // or null: no feedback
  Size memory_elements[2];
  double ratio;
  const uint8* ratio_from;  // where the ratio is, if not null; at any address
  bool corrected;           // whether the ratio multiplies the residual
  uint8* message;           // the ratio, if `payload` does not begin here, and the payload; at any address
  uint8* payload;
  Size bytes;               // of a message
  Status* status;           // or null
  RandomStream stream;
  uint32* ticket;           // words of this call alone; zeros, and zeros again afterwards: grid.cuh, settle.cuh
  void* workspace;
};

// What decompress is given: out = D(payload 0) + D(payload 1) + ..., added in that order in T, or with `add`
// out += that. Payloads are at any address.
template <typename T>
struct Decoding {
  Size n;
  const uint8* payloads;
  Size stride, count;
  T* out;
  bool add;
  Size bytes;           // of all messages
  Status* status;       // or null
  RandomStream stream;  // as compress had it
  uint32* ticket;       // as compress has it
  void* workspace;
};

// What residual and restore are given.
template <typename T>
struct Keeping {
  Size n;
  T* memory[2];
  T* residual;
};

// gluon_gc_conversion: to = from * scale * factor.
struct Conversion {
  const void* from;
  void* to;
  Size n;
  int from_itemsize, to_itemsize;
  double scale;
  const double* factor;  // or null: 1
  uint64* nonfinite;     // or null
};

// An array whose squares are summed: the sums of its tiles, and their sum.
struct Squares {
  const void* x;
  Size n;
  int itemsize;
  double* sums;  // tree_size(n)
  double* sum;
  uint32* ticket;
};

// By what to multiply `scale` times n arrays whose sums of squares these are, for an l2 norm of `most` at most.
struct Norm {
  const double* squares;
  Size n;
  double scale, most;
  double* factor;
};

// What a kernel is given: a call for each y of its grid, as many as fit in the 4 KB of its parameters, where there is
// some room left for what is alike for all.
template <typename Call>
struct Batch {
  static constexpr Size most = 4000 / sizeof(Call);
  Call call[most];
};

// Threads of a block, how many blocks a multiprocessor is to run at a time, for which a thread has 64 registers, and
// the elements that a warp takes at a time.
constexpr int block_threads = 256, blocks_together = 4, tile = sum_tile;

}  // namespace cuda
}  // namespace gluon_gc
