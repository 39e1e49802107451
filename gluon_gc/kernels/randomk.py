"""randomk: elements that everybody draws from the same stream."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .compressor import Compressor
from .library import address_of, integer, isa_number, output_of, pointer, size
from .stream import stream_address


class Randomk(Compressor):
    """The kernels of randomk."""

    name = "randomk"
    compress_types = size, pointer

    def __init__(self) -> None:
        super().__init__()
        for function in ("decompress", "decompress_add"):
            self._declare(function, None, pointer, size, size, pointer, pointer, integer, integer)

    def compress(
        self, gradient: np.ndarray, k: int, stream: np.ndarray, **shared: Any
    ) -> tuple[np.ndarray, float]:
        """Compress to k draws; without a residual, what is sent is multiplied by n / k.

        Parameters
        ----------
        gradient : array of T, shape (n,)
        k : int
            How many elements are drawn; it may exceed n.
        stream : array of uint64, shape (2,)
            The state of the generator, updated in place: k draws further on, unless n is 0.

        Returns
        -------
        payload : array of T, shape (k,)
            The values in the order in which they were drawn.
        check : float
            0, or NaN if an element of p is not finite; without momentum and residual, only those
            that are sent are looked at.
        """
        own = k, stream_address(stream)
        return self._compress(gradient, k, gradient.dtype, *own, **shared)

    def decompress(
        self,
        payload: np.ndarray,
        n: int,
        start: np.ndarray,
        *,
        out: Optional[np.ndarray] = None,
        threads: int = 1,
        isa: Optional[str] = None,
    ) -> np.ndarray:
        """Decode a payload.

        Parameters
        ----------
        payload : array of T, shape (k,)
        n : int
            The number of elements that were drawn from.
        start : array of uint64, shape (2,)
            The stream as it was before `compress`.
        out : array of T, shape (n,), optional
            Where to write.
        """
        out = output_of("out", out, n, payload.dtype)
        return self._decode("decompress", payload, start, out, threads, isa)

    def decompress_add(
        self,
        payload: np.ndarray,
        out: np.ndarray,
        start: np.ndarray,
        *,
        isa: Optional[str] = None,
    ) -> np.ndarray:
        """Add what `decompress` would give to ``out``, in place; returns it."""
        address_of("out", out, out.size, out.dtype, writes=True)
        return self._decode("decompress_add", payload, start, out, 1, isa)

    def _decode(
        self,
        function: str,
        payload: np.ndarray,
        start: np.ndarray,
        out: np.ndarray,
        threads: int,
        isa: Optional[str],
    ) -> np.ndarray:
        k, dtype = payload.size, out.dtype
        values = address_of("payload", payload, k, dtype)
        stream = address_of("start", start, 2, np.uint64)
        to = out.ctypes.data, threads, isa_number(isa)
        self._call(function, dtype, values, out.size, k, stream, *to)
        return out
