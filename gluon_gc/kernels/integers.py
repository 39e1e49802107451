"""Exact sums of integer tensors over workers, computed in float64.

Every engine can sum float64, which is exact for integers up to 2^53. A 64-bit integer is therefore
split into two halves of 32 bits, which are summed separately.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

_HALF = 32  # bits
_BASE = 2**_HALF


def summands(values: np.ndarray) -> list[np.ndarray]:
    """The float64 arrays to sum over workers: one, or two for the halves of 64-bit integers."""
    if values.dtype.itemsize < 8:
        return [values.astype(np.float64)]
    low = values & np.array(_BASE - 1, values.dtype)
    return [(values >> np.array(_HALF, values.dtype)).astype(np.float64), low.astype(np.float64)]


def _halves(sums: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The sums as high and low halves, int64, with 0 <= low < 2^32."""
    *highs, low = sums
    carry = np.floor(low / _BASE)
    low = (low - carry * _BASE).astype(np.int64)
    return sum(highs, carry).astype(np.int64), low


def total(sums: Sequence[np.ndarray], dtype: Any, called: str) -> np.ndarray:
    """The sum over workers of the arrays of `summands`, as integers.

    Raises OverflowError, which names the tensor `called`, if a sum does not fit into the dtype.
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
    """The average over workers, rounded towards 0, as MXNet divides integers."""
    high, low = _halves(sums)
    quotient, rest = np.divmod(high, workers)
    below, rest = np.divmod((rest << _HALF) + low, workers)
    down = (quotient << _HALF) + below
    return (down + ((high < 0) & (rest != 0))).astype(dtype)


def as_floats(sums: Sequence[np.ndarray]) -> np.ndarray:
    """The sum over workers, rounded to float64."""
    *highs, low = sums
    return sum((high * _BASE for high in highs), low)
