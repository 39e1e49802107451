#include "core/finite.h"

#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t unroll = 4;

// Whether none of n floats, given as integers of their size, has all bits of the exponent set: NaNs and infinities do.
template <typename Word>
bool none_has(Word exponent, const void* words, std::size_t n, int threads) {
  const Blocks<16384> blocks(n);
  bool found[max_blocks];
  blocks.run(threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
    const Word* const x = static_cast<const Word*>(words);
    Word any[unroll * lanes] = {};
    sweep<unroll * lanes>(begin, end, [&](std::size_t i, auto present) {
      for (std::size_t part = 0; part < unroll; ++part) {
        prefetch_ahead(x + i + part * lanes);
        const Vec<Word> v = load(x + i + part * lanes, present.part(part));
#pragma omp simd
        for (std::size_t l = 0; l < lanes; ++l) {
          any[part * lanes + l] |= (v.lane[l] & exponent) == exponent ? Word{1} : Word{0};
        }
      }
    });
    Word all = 0;
    for (const Word word : any) all |= word;
    found[block] = all != 0;
  });
  for (std::size_t block = 0; block < blocks.count; ++block) {
    if (found[block]) return false;
  }
  return true;
}

}  // namespace

template <Isa isa>
bool FiniteKernels<isa>::all(const std::uint16_t* x, std::size_t n, int threads) {
  return none_has(std::uint16_t{0x7c00}, x, n, threads);
}

template <Isa isa>
bool FiniteKernels<isa>::all(const float* x, std::size_t n, int threads) {
  return none_has(std::uint32_t{0x7f800000}, x, n, threads);
}

template <Isa isa>
bool FiniteKernels<isa>::all(const double* x, std::size_t n, int threads) {
  return none_has(std::uint64_t{0x7ff0000000000000}, x, n, threads);
}

template struct FiniteKernels<this_isa>;

}  // namespace gluon_gc
