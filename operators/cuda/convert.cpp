#include "cuda/convert.h"

#include "core/options.h"
#include "cuda/queue.h"

namespace gluon_gc {
namespace cuda {
namespace {

int checked(int itemsize) {
  if (itemsize != 2 && itemsize != 4 && itemsize != 8) {
    refuse("itemsize must be 2 (float16), 4 (float32) or 8 (float64) bytes, got %d", itemsize);
  }
  return itemsize;
}

}  // namespace

void convert(const gluon_gc_conversion* conversions, std::size_t count, Stream stream) {
  require("convert");
  Calls<Conversion> calls;
  for (std::size_t i = 0; i < count; ++i) {
    const gluon_gc_conversion& c = conversions[i];
    calls.push_back({c.from, c.to, c.n, checked(c.from_itemsize), checked(c.to_itemsize), c.scale, c.factor,
                     reinterpret_cast<uint64*>(c.nonfinite)});
  }
  largest_first(calls);
  Queue("convert", stream).launch<void>("convert", calls);
}

}  // namespace cuda
}  // namespace gluon_gc
