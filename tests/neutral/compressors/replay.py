"""Momentum, error feedback and sparse payloads in NumPy, common to the replays of compressors."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import numpy as np

from gluon_gc import kernels
from tests.neutral.kernels.bindings import draw


class Replay:
    """A codec in NumPy; the kernels must give the same bits. Each step takes a float array g.

    The test file of a compressor derives a class from it that encodes p. The options are those of
    `kernels.Codec`, and `start` is the first state of the random stream.
    """

    def __init__(
        self, options: Mapping[str, Any], n: int, dtype: Any, start: tuple[int, int] = (0, 0)
    ) -> None:
        self.options, self.n, self.T = options, n, np.dtype(dtype).type
        self.mu = self.T(options["mu"]) if "mu" in options else None
        self.momentum: np.ndarray | None = None if self.mu is None else np.zeros(n, dtype)
        self.residual: np.ndarray | None = np.zeros(n, dtype) if "ef" in options else None
        self.start, self.drawn = start, 0

    def step(
        self, g: np.ndarray, scale: float = 1.0, ratio: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes in use of the payload, and the decoded values."""
        g = g * self.T(scale)
        if self.momentum is not None:
            self.momentum = self.mu * self.momentum + g
            g = g + self.mu * self.momentum
        if self.residual is not None:
            applied = 1 if self.options["ef"] == "vanilla" else ratio
            applied = applied * self.options.get("ef_decay", 1)
            g = g + self.T(applied) * self.residual
        payload, decoded = self.encode(g)
        if self.residual is not None:
            self.residual = g - decoded
        return payload, decoded

    def encode(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes in use of the payload of p, and the decoded values."""
        raise NotImplementedError

    def draw(self, count: int) -> np.ndarray:
        """Return the stream's next draws."""
        position = kernels.position(self.start, self.drawn)
        self.drawn += count
        return draw(position, count)


def bytes_of(*arrays: np.ndarray) -> np.ndarray:
    """Concatenate arrays as bytes."""
    return np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays])


def element_count(k: float, n: int) -> int:
    """Return k as a number of elements; a share k < 1 gives at least 1."""
    return min(n, max(1, int(k * n if k < 1 else k)))


def packed(numbers: Any, bits: int) -> np.ndarray:
    """Return numbers as a list of `bits` bits each, from the lowest bit on."""
    table = np.asarray(numbers, np.uint32)[:, None] >> np.arange(bits, dtype=np.uint32) & 1
    return np.packbits(table.astype(np.uint8).ravel(), bitorder="little")


def finite_halves(x: np.ndarray) -> np.ndarray:
    """Return finite values as float16, and values beyond the largest float16 as that one."""
    return np.clip(x, -65504, 65504).astype(np.float16)


def low_bits_of(n: int, count: int) -> int:
    """Return the bits of an index in the list of low bits, if `count` of n elements are sent."""
    return (n // count).bit_length() - 1 if count else 0


def payload_of(indices: Iterable[int], values: np.ndarray, n: int, low_bits: int) -> np.ndarray:
    """Return a payload: upper parts of indices in unary, their low bits, and the values."""
    wide = np.array(list(indices), np.int64)
    high = np.zeros(wide.size + (max(n, 1) - 1 >> low_bits), np.uint32)
    high[(wide >> low_bits) + np.arange(wide.size)] = 1
    return bytes_of(packed(high, 1), packed(wide % 2**low_bits, low_bits), values)


def payload_bytes(n: int, count: int, low_bits: int, value_bytes: int) -> int:
    """Return the size of a payload."""
    high = count + (max(n, 1) - 1 >> low_bits)
    return -(-high // 8) - (-count * low_bits // 8) + count * value_bytes
