"""The speed of compressors on this machine."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

import numpy as np

from ..kernels import Codec

_ELEMENTS = 2**18  # 1 MB of float32
_SECONDS = 0.004  # of measurement for each function, at least
_CALLS = 5  # at least


class Speed(NamedTuple):
    """Seconds an element of float32, in one thread.

    Parameters
    ----------
    compress : float
    add : float
        To decode a payload and add it to a sum.
    decompress : float
    """

    compress: float
    add: float
    decompress: float


def measured(codec_of: Callable[[int, str], Codec]) -> Speed:
    """The speed of the codec that is made for a number of elements and a dtype.

    The numbers are medians over a few milliseconds, because another process may have had the
    processor during a call.
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


def _seconds(call: Callable[[], object]) -> float:
    """The seconds of a call an element."""
    call()
    times = [time.perf_counter()]
    while len(times) <= _CALLS or times[-1] < times[0] + _SECONDS:
        call()
        times.append(time.perf_counter())
    return float(np.median(np.diff(times))) / _ELEMENTS
