"""The two-way path in NumPy: what workers and server compute, written once more to be compared."""

from __future__ import annotations

from typing import List, Optional, Sequence

import numpy as np


class Onebit:
    """One node's onebit compressor with error feedback and momentum, on arrays of one dtype."""

    def __init__(self, scaling: bool, ef: Optional[str], mu: Optional[float] = None) -> None:
        self.scaling, self.ef, self.mu = scaling, ef, mu
        self.residual = self.momentum = 0

    def __call__(self, g: np.ndarray, ratio: float = 1.0) -> np.ndarray:
        """What the payload decodes to."""
        T = g.dtype.type
        if self.mu is not None:
            self.momentum = T(self.mu) * self.momentum + g
            g = g + T(self.mu) * self.momentum
        p = g
        if self.ef:
            p = g + T(ratio if self.ef == "corrected" else 1) * self.residual
        scale = T(np.abs(p.astype(np.float64)).mean()) if self.scaling else T(1)
        decoded = np.where(p < 0, -scale, scale).astype(g.dtype)
        if self.ef:
            self.residual = p - decoded
        return decoded


class TwoWay:
    """All workers and the server, for one chunk."""

    def __init__(self, workers: int, scaling: bool, ef: Optional[str], mu: Optional[float]) -> None:
        self.workers = [Onebit(scaling, ef, mu) for _ in range(workers)]
        self.server = Onebit(scaling, ef)

    def step(self, gradients: Sequence[np.ndarray], ratio: float = 1.0) -> np.ndarray:
        """The gradient that everybody gets; `gradients` in the order in which they are summed."""
        decoded = [worker(g, ratio) for worker, g in zip(self.workers, gradients)]
        total = decoded[0]
        for other in decoded[1:]:
            total = total + other
        return self.server(total, ratio)


def chunks(n: int, elements: int) -> List[slice]:
    """How a tensor of n elements is cut."""
    return [slice(begin, min(begin + elements, n)) for begin in range(0, n, elements)]
