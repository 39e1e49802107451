#include "core/half.h"

#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

using ElementBlocks = Blocks<16384>;

}  // namespace

template <Isa isa>
void HalfKernels<isa>::from_float(const float* x, std::size_t n, float scale, std::uint16_t* out,
                                  int threads) {
  const Vec<float> factor = broadcast(scale);
  ElementBlocks(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    sweep<lanes>(begin, end, [=](std::size_t i, auto present) {
      store(Half<float>::from(load(x + i, present) * factor), out + i, present);
    });
  });
}

template <Isa isa>
void HalfKernels<isa>::to_float(const std::uint16_t* x, std::size_t n, float* out, int threads) {
  ElementBlocks(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    sweep<lanes>(begin, end, [=](std::size_t i, auto present) {
      store(Half<float>::to(load(x + i, present)), out + i, present);
    });
  });
}

template struct HalfKernels<this_isa>;

}  // namespace gluon_gc
