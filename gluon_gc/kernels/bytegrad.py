"""bytegrad: one byte an element, which says where it is between the least and the largest."""

from __future__ import annotations

from typing import Any

import numpy as np

from .compressor import Codec


class Bytegrad(Codec):
    """The kernels of bytegrad."""

    name = "bytegrad"

    def compress(self, gradient: np.ndarray, **shared: Any) -> tuple[np.ndarray, float]:
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
        most = self.capacity(gradient.size, gradient.dtype)
        return self._compress(gradient, most, np.uint8, **shared)
