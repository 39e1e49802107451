"""The two-way path in NumPy: what workers and server compute, written once more to be compared."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence

import numpy as np


class Node:
    """One node's compressor with error feedback and momentum, on arrays of one dtype."""

    def __init__(self, params: Mapping[str, Any], mu: Optional[float] = None) -> None:
        """params: as compression_params; mu: of Nesterov's momentum, None without."""
        self.params, self.ef, self.mu = params, params.get("ef"), mu
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
        decoded = DECODED[self.params["compressor"]](p, self.params).astype(g.dtype)
        if self.ef:
            self.residual = p - decoded
        return decoded


def onebit(p: np.ndarray, params: Mapping[str, Any]) -> np.ndarray:
    scale = p.dtype.type(np.abs(p.astype(np.float64)).mean()) if params["scaling"] else 1
    return np.where(p < 0, -scale, scale)


def topk(p: np.ndarray, params: Mapping[str, Any]) -> np.ndarray:
    k = params["k"]
    count = min(p.size, max(1, int(k * p.size if k < 1 else k)))
    chosen = np.lexsort((np.arange(p.size), -np.abs(p)))[:count]
    decoded = np.zeros_like(p)
    decoded[chosen] = p[chosen]
    return decoded


DECODED = {"onebit": onebit, "topk": topk}
"""By compressor: what p and compression_params decode to."""


class TwoWay:
    """All workers and the server, for one chunk."""

    def __init__(self, workers: int, params: Mapping[str, Any], mu: Optional[float]) -> None:
        self.workers = [Node(params, mu) for _ in range(workers)]
        self.server = Node(params)

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
