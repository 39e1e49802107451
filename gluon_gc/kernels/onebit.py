"""onebit: the sign of each element and one scale."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .compressor import Codec, state_of
from .library import address_of, double, integer, isa_number, output_of, pointer, size


class Onebit(Codec):
    """The kernels of onebit."""

    name = "onebit"
    feedback_types = pointer, pointer, double
    compress_types = (integer,)

    def __init__(self) -> None:
        super().__init__()
        self._declare("residual", None, pointer, double, size, pointer, integer)

    def feedback(
        self,
        gradient: np.ndarray,
        corrected: Optional[np.ndarray] = None,
        scale: Optional[np.ndarray] = None,
        ratio: float = 1.0,
    ) -> tuple:
        """Its error feedback as C takes it.

        Parameters
        ----------
        gradient : array of T, shape (n,)
        corrected, scale : array of T, shapes (n,) and (1,), optional, together
            The p of the previous call and its scale, updated in place. The residual is
            e = p - D(p). Zeros to begin with; a residual e to go on from is corrected = e with
            scale = 0.
        ratio : float
        """
        if (corrected is None) != (scale is None):
            raise ValueError("corrected and scale must be given together")
        kept_scale = address_of("scale", scale, 1, gradient.dtype, writes=True)
        return state_of("corrected", corrected, gradient), kept_scale, ratio

    def compress(
        self, gradient: np.ndarray, *, scaling: bool = True, **shared: Any
    ) -> tuple[np.ndarray, float]:
        """Compress to signs.

        Parameters
        ----------
        gradient : array of T, shape (n,)
        scaling : bool
            The payload's scale is the mean magnitude, not 1.

        Returns
        -------
        payload : array of uint8
        magnitude : float
            The sum of abs(p) in float64; not finite where an element is not.
        """
        most = self.capacity(gradient.size, gradient.dtype)
        return self._compress(gradient, most, np.uint8, scaling, **shared)

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
