// The tree in which sums in float64 are made, in an order that n alone decides. For host and device.
//
// Of every tile of 1,024 elements, element i is added to chain i mod 32, in order; then the chains are added as a
// butterfly: chain j to chain j + 16, then + 8, + 4, + 2, + 1. The sums of the tiles are added in the same way, and so
// on, until one is left.
#pragma once

#include "core/host_device.h"

namespace gluon_gc {

constexpr Size sum_chains = 32, sum_tile = 1024;

constexpr Size tiles_of(Size n) { return n / sum_tile + (n % sum_tile != 0); }

// Bytes that the sums of the tiles of n elements take.
constexpr Size sums_bytes(Size n) { return tiles_of(n) * sizeof(double); }

// Doubles that the sums of the tiles take, with those of their tiles, and so on.
constexpr Size tree_size(Size n) { return tiles_of(n) + (n <= sum_tile ? 0 : tree_size(tiles_of(n))); }

}  // namespace gluon_gc
