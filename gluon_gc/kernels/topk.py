"""topk: the elements that are largest in magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np

from .compressor import Codec
from .library import size


class Topk(Codec):
    """The kernels of topk, whose one option is k, how many elements are sent."""

    name = "topk"
    compress_types = option_types = (size,)

    def options(self, k: int) -> tuple:
        return (k,)

    def compress(self, gradient: np.ndarray, k: int, **shared: Any) -> tuple[np.ndarray, float]:
        """Compress to k elements.

        Parameters
        ----------
        gradient : array of T, shape (n,)
        k : int
            min(1, n) <= k <= n

        Returns
        -------
        payload : array of uint8
        largest : float
            The largest abs(p); not finite where an element is not.
        """
        n, dtype = gradient.size, gradient.dtype
        if not min(1, n) <= k <= n:
            raise ValueError(f"k must be from {min(1, n)} to {n}, got {k}")
        return self._compress(gradient, self.capacity(n, dtype, k=k), np.uint8, k, **shared)
