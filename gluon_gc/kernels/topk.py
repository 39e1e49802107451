"""topk: the elements that are largest in magnitude."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .compressor import Codec, state_of
from .library import double, pointer, size


class Topk(Codec):
    """The kernels of topk, whose one option is k, how many elements are sent."""

    name = "topk"
    compress_takes = pointer, double, size
    option_types = (size,)

    def options(self, k: int) -> tuple:
        return (k,)

    def compress(
        self,
        gradient: np.ndarray,
        k: int,
        *,
        residual: Optional[np.ndarray] = None,
        ratio: float = 1.0,
        **shared: Any,
    ) -> tuple[np.ndarray, float]:
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
        own = state_of("residual", residual, gradient), ratio, k
        return self._compress(gradient, self.capacity(n, dtype, k=k), np.uint8, *own, **shared)
