"""The fixed tree of operators/core/sums.h in NumPy."""

import numpy as np

TILE, CHAINS = 1024, 32


def tree_sum(x: np.ndarray) -> float:
    """The sum of values >= 0 in float64, in the order that their number alone decides."""
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
    """The sum of |p|."""
    return tree_sum(np.abs(p.astype(np.float64)))


def l2_norm(p: np.ndarray) -> np.floating:
    """In T, at most the largest T."""
    norm = np.sqrt(tree_sum(p.astype(np.float64) ** 2))
    return p.dtype.type(min(norm, np.finfo(p.dtype).max))
