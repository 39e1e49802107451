// Launches the kernels of clip.cu. The workspace holds a ticket for each array, then the sum of squares of each array,
// then the sums of the tiles of each array.
#include "cuda/clip.h"

#include "core/options.h"
#include "cuda/queue.h"

namespace gluon_gc {
namespace cuda {
namespace {

constexpr std::size_t bytes_of_array = gluon_gc_ticket_bytes + sizeof(double);

}  // namespace

std::size_t clip_workspace(const gluon_gc_values* arrays, std::size_t count) {
  std::size_t bytes = count * bytes_of_array;
  for (std::size_t i = 0; i < count; ++i) bytes += tree_size(arrays[i].n) * sizeof(double);
  return bytes;
}

void clip(const gluon_gc_values* arrays, std::size_t count, const gluon_gc_clipping& clipping) {
  require("clip");
  auto* ticket = static_cast<unsigned char*>(clipping.workspace);
  auto* const squares = reinterpret_cast<double*>(ticket + count * gluon_gc_ticket_bytes);
  double* sums = squares + count;
  Calls<Squares> calls;
  for (std::size_t i = 0; i < count; ++i) {
    const gluon_gc_values& array = arrays[i];
    calls.push_back({array.x, array.n, array.itemsize, sums, squares + i, reinterpret_cast<uint32*>(ticket)});
    sums += tree_size(array.n);
    ticket += gluon_gc_ticket_bytes;
  }
  largest_first(calls);
  const Queue queue("clip", clipping.stream);
  queue.fill_with_zeros(clipping.workspace, count * gluon_gc_ticket_bytes);
  queue.launch<void>("clip_squares", calls);
  queue.launch<void>("clip_factor", Calls<Norm>{{squares, count, clipping.scale, clipping.max_norm, clipping.factor}});
}

}  // namespace cuda
}  // namespace gluon_gc
