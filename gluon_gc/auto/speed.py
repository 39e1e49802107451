"""The speed of compressors and of PowerSGD on this machine."""

from __future__ import annotations

import math
import time
from typing import Callable, NamedTuple

import numpy as np

from .. import kernels
from ..kernels import Codec

_ELEMENTS = 2**18  # 1 MB of float32
_SECONDS = 0.004  # the least time of measurement for each function
_CALLS = 5  # the least number of calls


class Speed(NamedTuple):
    """Seconds an element of float32, on one thread."""

    compress: float
    add: float  # decode a payload and add it to a sum
    decompress: float


def measured(codec_of: Callable[[int, str], Codec]) -> Speed:
    """The speed of a codec. `codec_of` makes it for a number of elements and a dtype.

    The numbers are medians over a few milliseconds, because another process may use the processor
    during a call.
    """
    codec = codec_of(_ELEMENTS, "float32")
    values = np.random.default_rng(0).standard_normal(_ELEMENTS, np.float32)
    state, out = codec.state(), np.zeros_like(values)
    payload, _ = codec.compress(values, state)
    return Speed(
        _seconds(lambda: codec.compress(values, state, payload=payload)),
        _seconds(lambda: codec.decompress(payload, out=out, add=True)),
        _seconds(lambda: codec.decompress(payload, out=out)),
    )


def of_low_rank(rank: int) -> float:
    """The seconds an element of PowerSGD's three products, with factors of this rank."""
    side = math.isqrt(_ELEMENTS)
    random = np.random.default_rng(0)
    gradient = random.standard_normal((side, side), np.float32)
    p, q, left, right = random.standard_normal((4, rank, side), np.float32)
    total = np.zeros_like(gradient)
    return (
        _seconds(lambda: kernels.accumulate(gradient, p, q, q, total, left))
        + _seconds(lambda: kernels.project(p, total, right))
        + _seconds(lambda: kernels.multiply(p, q, gradient))
    )


def _seconds(call: Callable[[], object]) -> float:
    """The seconds an element of a call."""
    call()
    times = [time.perf_counter()]
    while len(times) <= _CALLS or times[-1] < times[0] + _SECONDS:
        call()
        times.append(time.perf_counter())
    return float(np.median(np.diff(times))) / _ELEMENTS
