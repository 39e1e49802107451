"""Deep Gradient Compression (Lin et al. 2018) in NumPy; the kernels must give the same bits."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Callable, Sequence

import numpy as np

from tests.neutral.compressors import replay
from tests.neutral.compressors.replay import bytes_of
from tests.neutral.kernels.sums import l2_norm

from .replay import draws


def plan(n: int, ratio: float, sample_ratio: float) -> dict[str, int]:
    """Return how many of n elements to send, and the sample from which the threshold is taken."""
    stride, samples = 1, n
    least = max(math.ceil(n * sample_ratio), math.ceil(2 / ratio))
    if sample_ratio < 1 and ratio < 1 and n > math.ceil(2 / ratio):
        stride = math.ceil(n / least / 32) * 32 + 1
        while n // stride < least:
            stride -= 8
        samples = n // stride
    top, selects = math.ceil(samples * ratio), math.ceil(n * ratio)
    return {"selects": selects, "samples": samples, "top": top, "stride": stride}


def compensate(
    g: np.ndarray,
    v: np.ndarray,
    m: np.ndarray | None = None,
    mu: float = 0.0,
    nesterov: bool = False,
    max_norm: float = 0.0,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the next velocity and momentum for a scaled gradient."""
    T = g.dtype.type
    if max_norm > 0:
        norm = l2_norm(g)
        if norm > T(max_norm):
            g = g * (T(max_norm) / norm)
    if m is None:
        return v + g, None
    if nesterov:
        m = (m + g) * T(mu)
        return (v + m) + g, m
    m = T(mu) * m + g
    return v + m, m


def sparsify(
    v: np.ndarray,
    draw: Callable[[int], Sequence[int]],
    *,
    selects: int,
    samples: int,
    top: int,
    stride: int,
    strided: bool = True,
    upper: float = 1.3,
    lower: float = 0.8,
    iterations: int = 10,
    resample: bool = True,
) -> np.ndarray:
    """Return the indices to send; ``draw(count)`` returns the stream's next whole numbers."""
    importance, T = np.abs(v), v.dtype.type
    if samples == v.size:
        sample, iterations = importance, 0
    elif strided:
        sample = importance[draw(1)[0] % stride :: stride]
    else:
        sample = importance[[drawn % v.size for drawn in draw(samples)]]
    threshold = np.sort(sample)[-top] if v.size else T(0)
    indices = np.flatnonzero(importance >= threshold)
    for _ in range(iterations):
        if indices.size > selects:
            if indices.size <= selects * upper:
                break
            if resample:
                largest = np.lexsort((np.arange(v.size), -importance))
                indices = np.sort(largest[:selects])
                break
            threshold = threshold * T(upper)
        elif indices.size < lower * selects:
            threshold = threshold * T(lower)
        else:
            break
        indices = np.flatnonzero(importance >= threshold)
    return indices[:selects]


def update(
    v: np.ndarray, m: np.ndarray | None, indices: np.ndarray, momentum_masking: bool
) -> np.ndarray:
    """Remove the sent values from v, and with masking also from m; returns them."""
    sent = v[indices]
    v[indices] = 0
    if m is not None and momentum_masking:
        m[indices] = 0
    return sent


class Replay:
    """One worker's compressor and state for n elements.

    `start` is the first state of the random stream, `selects_at_last` the number of elements that
    are sent after the warm-up (by default as many as now); `options` are those of `sparsify`.
    """

    def __init__(
        self,
        n: int,
        dtype,
        mu: float | None = None,
        start: tuple[int, int] = (2020, 2020),
        nesterov: bool = True,
        momentum_masking: bool = True,
        half_values: bool = False,
        max_norm: float = 0.0,
        selects_at_last: int | None = None,
        **options: Any,
    ) -> None:
        self.velocity = np.zeros(n, dtype)
        self.momentum = None if mu is None else np.zeros(n, dtype)
        self.mu, self.nesterov, self.momentum_masking = mu, nesterov, momentum_masking
        self.half_values, self.max_norm, self.options = half_values, max_norm, options
        self.selects_at_last = selects_at_last
        self.start, self.drawn, self.stream = start, 0, draws(*start)

    def draw(self, count: int) -> list[int]:
        self.drawn += count
        return list(islice(self.stream, count))

    def step(self, gradient: np.ndarray, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of the payload, and the decoded gradient."""
        v, m = compensate(
            gradient * gradient.dtype.type(scale),
            self.velocity,
            self.momentum,
            self.mu,
            self.nesterov,
            self.max_norm,
        )
        indices = sparsify(v, self.draw, **self.options)
        values = update(v, m, indices, self.momentum_masking)
        self.velocity, self.momentum = v, m
        if self.half_values:
            halves = replay.finite_halves(values)
            v[indices] = values - halves.astype(v.dtype)
            values = halves
        decoded = np.zeros_like(v)
        decoded[indices] += values
        selects = self.options["selects"] if self.selects_at_last is None else self.selects_at_last
        low_bits = replay.low_bits_of(v.size, selects)
        return payload_of(indices, values, v.size, low_bits), decoded


def payload_of(
    indices: Any, values: np.ndarray, n: int, low_bits: int, length: int | None = None
) -> np.ndarray:
    """Return the bytes of a payload. A wrong length can be given."""
    body = replay.payload_of(indices, values, n, low_bits)
    length = 4 + body.size if length is None else length
    return bytes_of(np.array([length], np.uint32), body)
