"""Exact sums of integers over workers, by way of float64, which every engine can sum.

float64 holds whole numbers up to 2^53. Integers of 64 bits are summed as two halves, high and low.
"""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import numpy as np

_HALF = 32  # bits
_BASE = 2**_HALF


def summands(values: np.ndarray) -> List[np.ndarray]:
    """The float64 arrays that are summed over workers in the place of integers."""
    if values.dtype.itemsize < 8:
        return [values.astype(np.float64)]
    low = values & np.array(_BASE - 1, values.dtype)
    return [(values >> np.array(_HALF, values.dtype)).astype(np.float64), low.astype(np.float64)]


def _halves(sums: Sequence[np.ndarray]) -> Tuple[np.ndarray, np.ndarray]:
    """The high and the low half of the sums, int64; the low one is at least 0."""
    *highs, low = sums
    carry = np.floor(low / _BASE)
    low = (low - carry * _BASE).astype(np.int64)
    return sum(highs, carry).astype(np.int64), low


def total(sums: Sequence[np.ndarray], dtype: Any, called: str) -> np.ndarray:
    """The sum over workers.

    Parameters
    ----------
    sums : sequence of ndarray
        The sums of what `summands` returned on all workers.
    dtype : dtype
        Of the integers.
    called : str
        What an error calls them.

    Raises
    ------
    OverflowError
        A sum does not fit the dtype.
    """
    high, low = _halves(sums)
    info = np.iinfo(dtype)
    fits = (info.min >> _HALF <= high) & (high <= info.max >> _HALF)
    values = (high << _HALF) + low
    if info.bits < 64:
        fits &= (info.min <= values) & (values <= info.max)
    if not fits.all():
        position = int(np.argmin(fits))
        got = int(high.flat[position]) * _BASE + int(low.flat[position])
        raise OverflowError(
            f"the sum of {called} over all workers must be in [{info.min}, {info.max}] for "
            f"{info.dtype}, got {got}: cast it to a wider dtype, or average"
        )
    return values.astype(dtype)


def average(sums: Sequence[np.ndarray], workers: int, dtype: Any) -> np.ndarray:
    """The average over workers, rounded towards 0 as by MXNet's division of integers."""
    high, low = _halves(sums)
    quotient, rest = np.divmod(high, workers)
    below, rest = np.divmod((rest << _HALF) + low, workers)
    down = (quotient << _HALF) + below
    return (down + ((high < 0) & (rest != 0))).astype(dtype)


def as_floats(sums: Sequence[np.ndarray]) -> np.ndarray:
    """The sums over workers, rounded to float64."""
    *highs, low = sums
    return sum((high * _BASE for high in highs), low)
