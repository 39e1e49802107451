"""The speed of compressors and of PowerSGD on this machine, and how busy its processors are."""

from __future__ import annotations

import math
import time
from typing import Callable, NamedTuple

import numpy as np

from .. import kernels
from ..kernels import Codec

_ELEMENTS = 2**18  # 1 MB of float32
_COPIES = 32  # of all arrays, together larger than caches, as gradients are
_SECONDS = 0.004  # the least time of measurement for each function
_CROWDED_SECONDS = 0.2  # of a processor: many times as long as it stays with one process
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
    values, out = _copies(np.random.default_rng(0).standard_normal(_ELEMENTS, np.float32))
    states = [codec.state() for _ in values]
    payloads = [codec.compress(each, state)[0] for each, state in zip(values, states)]
    return Speed(
        _seconds(lambda i: codec.compress(values[i], states[i], payload=payloads[i])),
        _seconds(lambda i: codec.decompress(payloads[i], out=out[i], add=True)),
        _seconds(lambda i: codec.decompress(payloads[i], out=out[i])),
    )


def of_low_rank(rank: int) -> float:
    """The seconds an element of PowerSGD's three products, with factors of this rank."""
    side = math.isqrt(_ELEMENTS)
    random = np.random.default_rng(0)
    gradients, totals = _copies(random.standard_normal((side, side), np.float32))
    p, q, left, right = random.standard_normal((4, rank, side), np.float32)
    return (
        _seconds(lambda i: kernels.accumulate(gradients[i], p, q, q, totals[i], left))
        + _seconds(lambda i: kernels.project(p, totals[i], right))
        + _seconds(lambda i: kernels.multiply(p, q, gradients[i]))
    )


def _copies(values: np.ndarray) -> np.ndarray:
    """Two sets of copies of an array."""
    return np.tile(values, (2, _COPIES) + values.ndim * (1,))


def crowding() -> float:
    """How many times longer work takes here because others use the processors at the same time.

    It is the time that a kernel takes, divided by the time that a processor spends on it.
    """
    values = np.zeros(_ELEMENTS, np.float32)
    started, computing = time.perf_counter(), time.thread_time()
    while time.thread_time() < computing + _CROWDED_SECONDS:
        np.add(values, 1.0, out=values)
    return (time.perf_counter() - started) / (time.thread_time() - computing)


def _seconds(call: Callable[[int], object]) -> float:
    """The seconds an element of a call, which gets the number of a copy."""
    call(0)
    times = [time.perf_counter()]
    while len(times) <= _CALLS or times[-1] < times[0] + _SECONDS:
        call(len(times) % _COPIES)
        times.append(time.perf_counter())
    return float(np.median(np.diff(times))) / _ELEMENTS
