// What the kernels of every compressor are given. For host and device: NVRTC has no header of the standard
// library, hence the names of integers.
#pragma once

namespace gluon_gc {
namespace cuda {

using Size = decltype(sizeof(0));
using uint8 = unsigned char;
using uint32 = unsigned int;
using uint64 = unsigned long long;
static_assert(sizeof(Size) == 8 && sizeof(uint32) == 4 && sizeof(uint64) == 8, "other types than the host's");

// gluon_gc_status.
struct Status {
  uint64 bytes, finite;
};

// What compress is given: p is g = gradient * gradient_scale after momentum and feedback.
template <typename T>
struct Encoding {
  Size n;
  const T* gradient;
  T gradient_scale;
  T* momentum;              // n, or null
  T mu;
  T* memory[2];             // or null: no feedback
  Size memory_elements[2];
  double ratio;
  const uint8* ratio_from;  // where the ratio is, if not null; at any address
  uint64 stream[2];         // the random stream, where it draws
  bool corrected;           // whether the ratio multiplies the residual
  uint8* message;           // the ratio, if `payload` does not begin here, and the payload; at any address
  uint8* payload;
  Size bytes;               // of a message
  Status* status;           // or null
  uint32* ticket;           // zero, and zero again afterwards: grid.cuh
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
  Size bytes;      // of all messages
  Status* status;  // or null
};

// Threads of a block, and the elements that a warp of it takes at a time.
constexpr int block_threads = 256, tile = 1024;

constexpr Size tiles_of(Size n) { return n / tile + (n % tile != 0); }

// Doubles that the sums of the tiles of n elements take, with those of their tiles, and so on: sums.cuh.
constexpr Size tree_size(Size n) { return tiles_of(n) + (n <= tile ? 0 : tree_size(tiles_of(n))); }

}  // namespace cuda
}  // namespace gluon_gc
