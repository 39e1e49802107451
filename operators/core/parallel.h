// Splits a range into blocks and the blocks over threads. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstring>

namespace gluon_gc {
namespace {

constexpr std::size_t max_blocks = 128;

// [0, n) cut into at most max_blocks blocks of a multiple of `grain` each, the last one shorter. The cut
// depends on n alone, so what is summed block by block is the same for every number of threads.
template <std::size_t grain>
struct Blocks {
  explicit Blocks(std::size_t n)
      : n(n), size(grain * (n / (grain * max_blocks) + 1)), count(n / size + (n % size != 0)) {}

  // Calls body(block, begin, end) for each block, on up to `threads` threads.
  template <typename Body>
  void run(int threads, Body body) const {
    if (threads <= 1 || count <= 1) {
      for (std::size_t block = 0; block < count; ++block) body(block, block * size, end(block));
      return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::size_t block = 0; block < count; ++block) body(block, block * size, end(block));
  }

  std::size_t end(std::size_t block) const { return block + 1 == count ? n : (block + 1) * size; }

  const std::size_t n, size, count;
};

template <typename T>
void fill_with_zeros(T* out, std::size_t n, int threads) {
  Blocks<16384>(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    std::memset(out + begin, 0, (end - begin) * sizeof(T));
  });
}

}  // namespace
}  // namespace gluon_gc
