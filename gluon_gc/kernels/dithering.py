"""dithering: each element rounded at random to one of a few levels."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .compressor import Codec
from .library import declare, integer, library, pointer, size
from .stream import stream_address

_levels = ctypes.c_uint32


class Dithering(Codec):
    """The kernels of dithering, whose options are those that `allows` takes."""

    name = "dithering"
    compress_types = _levels, integer, integer, integer, pointer
    option_types = _levels, integer

    def __init__(self) -> None:
        super().__init__()
        declare("dithering_allows", integer, size, integer)

    def allows(self, levels: int, natural: bool = False) -> bool:
        """Whether there can be so many levels.

        Parameters
        ----------
        levels : int
            1 to 31 if natural, else 1 to 2**23 - 1
        natural : bool
            Whether levels are powers of two, or else equidistant.
        """
        return levels > 0 and bool(library.gluon_gc_dithering_allows(levels, natural))

    def options(self, levels: int, natural: bool = False) -> tuple:
        if not self.allows(levels, natural):
            most = "31 (natural)" if natural else "2**23 - 1"
            raise ValueError(f"levels must be from 1 to {most}, got {levels}")
        return levels, natural

    def compress(
        self,
        gradient: np.ndarray,
        levels: int,
        stream: np.ndarray,
        *,
        natural: bool = False,
        l2: bool = False,
        fixed_width: bool = False,
        **shared: Any,
    ) -> tuple[np.ndarray, float]:
        """Compress to levels.

        Parameters
        ----------
        gradient : array of T, shape (n,)
        levels : int
        stream : array of uint64, shape (2,)
            Moved on in place, by n draws.
        natural : bool
        l2 : bool
            Whether the norm is the l2 norm, or else the largest magnitude.
        fixed_width : bool
            Leave out Elias coding even where it is smaller.

        Returns
        -------
        payload : array of uint8
            The first uint32 says how many bytes are in use; the others have no meaning.
        norm : float
            Not finite where an element is not, or the l2 norm of float64 overflows.
        """
        most = self.capacity(gradient.size, gradient.dtype, levels=levels, natural=natural)
        own = levels, natural, l2, fixed_width, stream_address(stream)
        return self._compress(gradient, most, np.uint8, *own, **shared)
