"""bytegrad: one byte an element, which says where it is between the least and the largest."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .compressor import Codec, state_of
from .library import double, pointer


class Bytegrad(Codec):
    """The kernels of bytegrad."""

    name = "bytegrad"
    compress_takes = pointer, double

    def compress(
        self,
        gradient: np.ndarray,
        *,
        residual: Optional[np.ndarray] = None,
        ratio: float = 1.0,
        **shared: Any,
    ) -> tuple[np.ndarray, float]:
        """Compress to bytes.

        Parameters
        ----------
        gradient : array of T, shape (n,)

        Returns
        -------
        payload : array of uint8
            The first uint32 says how many bytes are in use; the others have no meaning.
        largest : float
            The largest abs(p); a NaN where an element is not finite.
        """
        own = state_of("residual", residual, gradient), ratio
        most = self.capacity(gradient.size, gradient.dtype)
        return self._compress(gradient, most, np.uint8, *own, **shared)
