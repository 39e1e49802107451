// Splits a range into blocks, and shares the blocks among threads. For kernel sources only (see isa.h).
#pragma once

#include <cstddef>
#include <cstring>

namespace gluon_gc {
namespace {

constexpr std::size_t max_blocks = 128;

// [0, n) in at most max_blocks blocks. The size of a block is a multiple of `grain`; the last one may be shorter. The
// sizes depend on n only, so sums over blocks are the same for every number of threads.
template <std::size_t grain>
struct Blocks {
  explicit Blocks(std::size_t n)
      : n(n), size(grain * (n / (grain * max_blocks) + 1)), count(n / size + (n % size != 0)) {}

  // Calls body(block, begin, end) for each block, on up to `threads` threads.
  template <typename Body>
  void run(int threads, Body body) const {
    share(threads, [=](std::size_t, std::size_t first, std::size_t last) {
      for (std::size_t block = first; block < last; ++block) body(block, block * size, end(block));
    });
  }

  // The same, but each thread goes from its last block to its first. Use it for the first of two sweeps: it starts with
  // the memory that was written last, and ends where the second sweep starts. Both may still be in the cache.
  template <typename Body>
  void run_back(int threads, Body body) const {
    share(threads, [=](std::size_t, std::size_t first, std::size_t last) {
      for (std::size_t block = last; block-- > first;) body(block, block * size, end(block));
    });
  }

  // Calls body(part, begin, end) for each of parts(threads) parts. A part is the range that `run` gives to one thread.
  // That matters because memory that another core has written is slow to read.
  template <typename Body>
  void run_parts(int threads, Body body) const {
    share(threads, [=](std::size_t part, std::size_t first, std::size_t last) {
      body(part, first * size, last == count ? n : last * size);
    });
  }

  std::size_t parts(int threads) const {
    return threads <= 1 || count <= 1 ? 1 : std::size_t(threads) < count ? threads : count;
  }

  std::size_t end(std::size_t block) const { return block + 1 == count ? n : (block + 1) * size; }

  const std::size_t n, size, count;

 private:
  template <typename Body>
  void share(int threads, Body body) const {
    const std::size_t parts = this->parts(threads);
    const auto run = [=](std::size_t part) {
      body(part, part * count / parts, (part + 1) * count / parts);
#if defined(__x86_64__)
      __builtin_ia32_sfence();  // other threads may read what it has stored past the caches (vec.h)
#endif
    };
    if (parts == 1) return run(0);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (std::size_t part = 0; part < parts; ++part) run(part);
  }
};

template <typename T>
void fill_with_zeros(T* out, std::size_t n, int threads) {
  Blocks<16384>(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    std::memset(out + begin, 0, (end - begin) * sizeof(T));
  });
}

}  // namespace
}  // namespace gluon_gc
