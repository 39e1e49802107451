"""Checks for values that are not finite, and sums of squares."""

from __future__ import annotations

import numpy as np

from .library import address_of, isa_number, library


def values_finite(x: np.ndarray, *, threads: int = 1, isa: str | None = None) -> bool:
    """Whether all elements of a float16, float32 or float64 array are finite."""
    if x.dtype not in (np.float16, np.float32, np.float64):
        raise TypeError(f"x must be float16, float32 or float64, got {x.dtype}")
    address = address_of("x", x, x.size, x.dtype)
    return bool(
        library.gluon_gc_values_finite(address, x.size, x.itemsize, threads, isa_number(isa))
    )


def sum_of_squares(x: np.ndarray, *, threads: int = 1, isa: str | None = None) -> float:
    """The sum of the squares of a float32 or float64 array, computed in float64.

    The order of additions depends only on the number of elements (operators/core/sums.h), so the
    result is the same for all values of `threads` and `isa`.
    """
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"x must be float32 or float64, got {x.dtype}")
    address = address_of("x", x, x.size, x.dtype)
    return library.gluon_gc_sum_of_squares(address, x.size, x.itemsize, threads, isa_number(isa))
