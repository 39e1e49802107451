"""onebit: the sign of each element and one scale."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .compressor import Codec, state_of
from .library import address_of, double, integer, isa_number, output_of, pointer, size


class Onebit(Codec):
    """The kernels of onebit."""

    name = "onebit"
    compress_takes = pointer, pointer, double, integer

    def __init__(self) -> None:
        super().__init__()
        self._declare("residual", None, pointer, double, size, pointer, integer)

    def compress(
        self,
        gradient: np.ndarray,
        *,
        scaling: bool = True,
        corrected: Optional[np.ndarray] = None,
        scale: Optional[np.ndarray] = None,
        ratio: float = 1.0,
        **shared: Any,
    ) -> tuple[np.ndarray, float]:
        """Compress to signs.

        Parameters
        ----------
        gradient : array of T, shape (n,)
        scaling : bool
            The payload's scale is the mean magnitude, not 1.
        corrected, scale : array of T, shapes (n,) and (1,), optional, together
            The p of the previous call and its scale, updated in place. The residual is
            e = p - D(p). Zeros to begin with; a residual e to go on from is corrected = e with
            scale = 0.

        Returns
        -------
        payload : array of uint8
        magnitude : float
            The sum of abs(p) in float64; not finite where an element is not.
        """
        if (corrected is None) != (scale is None):
            raise ValueError("corrected and scale must be given together")
        n, dtype = gradient.size, gradient.dtype
        kept = state_of("corrected", corrected, gradient)
        kept_scale = address_of("scale", scale, 1, dtype, writes=True)
        own = kept, kept_scale, ratio, scaling
        return self._compress(gradient, self.capacity(n, dtype), np.uint8, *own, **shared)

    def residual(
        self,
        corrected: np.ndarray,
        scale: np.ndarray,
        *,
        out: Optional[np.ndarray] = None,
        isa: Optional[str] = None,
    ) -> np.ndarray:
        """The residual e = p - D(p) of the feedback state that `compress` keeps."""
        n, dtype = corrected.size, corrected.dtype
        address = address_of("corrected", corrected, n, dtype)
        address_of("scale", scale, 1, dtype)
        out = output_of("out", out, n, dtype)
        self._call("residual", dtype, address, scale[0], n, out.ctypes.data, isa_number(isa))
        return out
