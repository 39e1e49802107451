"""The fixed tree of operators/core/sums.h in NumPy."""

import numpy as np

TILE, CHAINS = 1024, 32


def tree_sum(x: np.ndarray) -> float:
    """Return the float64 sum of values >= 0, in an order that depends only on their number."""
    x = x.astype(np.float64)
    while True:
        tiles = -(-x.size // TILE)
        rows = np.pad(x, (0, tiles * TILE - x.size)).reshape(tiles, TILE // CHAINS, CHAINS)
        chains = np.zeros((tiles, CHAINS))
        for row in range(rows.shape[1]):
            chains += rows[:, row]
        while chains.shape[1] > 1:
            low, high = np.split(chains, 2, axis=1)
            chains = low + high
        x = chains[:, 0]
        if tiles <= 1:
            return float(x.sum())


def magnitudes(p: np.ndarray) -> float:
    """Return the sum of |p|."""
    return tree_sum(np.abs(p.astype(np.float64)))


def l2_norm(p: np.ndarray) -> np.floating:
    """Return the l2 norm in p's dtype, at most the largest finite value."""
    norm = np.sqrt(tree_sum(p.astype(np.float64) ** 2))
    return p.dtype.type(min(norm, np.finfo(p.dtype).max))
