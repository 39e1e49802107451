"""The payloads of topk and dgc in NumPy: packed indices, and values that may be float16."""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np

from .replay import bytes_of


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
