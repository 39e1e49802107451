"""Momentum and error feedback in NumPy, which the replays of the compressors share."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple

import numpy as np

from gluon_gc import kernels


class Replay:
    """A codec in NumPy, of a float array g a step: what the kernels must give, bit for bit.

    A compressor's own test file derives one from it, which says how p is encoded.

    Parameters
    ----------
    options : mapping
        As `kernels.Codec` has them.
    n : int
    dtype : float32 or float64
    start : tuple of two int
        The state of the random stream that it begins with.
    """

    def __init__(
        self, options: Mapping[str, Any], n: int, dtype: Any, start: Tuple[int, int] = (0, 0)
    ) -> None:
        self.options, self.n, self.T = options, n, np.dtype(dtype).type
        self.mu = self.T(options["mu"]) if "mu" in options else None
        self.momentum: Optional[np.ndarray] = None if self.mu is None else np.zeros(n, dtype)
        self.residual: Optional[np.ndarray] = np.zeros(n, dtype) if "ef" in options else None
        self.start, self.drawn = start, 0

    def step(
        self, g: np.ndarray, scale: float = 1.0, ratio: float = 1.0
    ) -> Tuple[np.ndarray, np.ndarray]:
        """The bytes in use of the payload, and what it decodes to."""
        g = g * self.T(scale)
        if self.momentum is not None:
            self.momentum = self.mu * self.momentum + g
            g = g + self.mu * self.momentum
        if self.residual is not None:
            applied = 1 if self.options["ef"] == "vanilla" else ratio
            g = g + self.T(applied) * self.residual
        payload, decoded = self.encode(g)
        if self.residual is not None:
            self.residual = g - decoded
        return payload, decoded

    def encode(self, p: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """The bytes in use of the payload of p, and what it decodes to."""
        raise NotImplementedError

    def draw(self, count: int) -> np.ndarray:
        """The stream's next draws."""
        position = kernels.position(self.start, self.drawn)
        self.drawn += count
        return kernels.draw(position, count)


def bytes_of(*arrays: np.ndarray) -> np.ndarray:
    """Arrays one after the other, as bytes."""
    return np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays])


def element_count(k: float, n: int) -> int:
    """A share of n elements, of which at least one, or a number of them."""
    return min(n, max(1, int(k * n if k < 1 else k)))
