// The order of additions in sums in float64. It depends on n only, so that every device and every number of threads
// computes the same bits. For host and device.
//
// A tile has 1,024 elements. Element i of a tile is added to chain i mod 32, in order of i. Then a butterfly adds the
// chains: chain j += chain j + 16, then j + 8, j + 4, j + 2, j + 1. The sums of the tiles are summed in the same way,
// level by level, until one sum is left.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {

constexpr Size sum_chains = 32, sum_tile = 1024;

constexpr Size tiles_of(Size n) { return n / sum_tile + (n % sum_tile != 0); }

// The size in bytes of the sums of the tiles of n elements.
constexpr Size sums_bytes(Size n) { return tiles_of(n) * sizeof(double); }

// The number of sums in all levels of the tree.
constexpr Size tree_size(Size n) { return tiles_of(n) + (n <= sum_tile ? 0 : tree_size(tiles_of(n))); }

}  // namespace gluon_gc
