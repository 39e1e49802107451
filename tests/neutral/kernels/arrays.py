"""Arrays for the kernels' tests: guarded memory, and awkward sizes and values."""

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import strategies as st

from gluon_gc import kernels

SIZES = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 4097, 70001)
_PATTERN = 0xA5
_PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Arrays between guard bytes, which `check` compares, in front of a page without access.

    With offset 0, an array ends where that page starts, so that even reading past its end crashes.
    """

    def __init__(self, offset: int = 0):
        self.offset = offset
        self._rooms = []

    def copy(self, values: np.ndarray) -> np.ndarray:
        """Return a copy of an array that ends ``offset`` elements before the guard page."""
        end = -(-(values.nbytes + (self.offset + 1) * 64) // _PAGE) * _PAGE
        room = np.frombuffer(mmap.mmap(-1, end + _PAGE), np.uint8)
        room[:end] = _PATTERN
        assert _libc.mprotect(ctypes.c_void_p(room.ctypes.data + end), _PAGE, _PROT_NONE) == 0
        end -= self.offset * values.itemsize
        start = end - values.nbytes
        self._rooms.append((room[: end + self.offset * values.itemsize], start, end))
        array = room[start:end].view(values.dtype)
        array[...] = values
        return array

    def empty(self, size: int, dtype) -> np.ndarray:
        return self.copy(np.full(size * np.dtype(dtype).itemsize, _PATTERN, np.uint8).view(dtype))

    def check(self) -> None:
        for room, start, end in self._rooms:
            assert (room[:start] == _PATTERN).all(), "written before the start of an array"
            assert (room[end:] == _PATTERN).all(), "written past the end of an array"


def awkward(size: int, dtype, seed: int) -> np.ndarray:
    """Return normal draws of many magnitudes; odd seeds add zeros, subnormals and huge values."""
    random = np.random.default_rng(seed)
    values = (random.standard_normal(size) * 10.0 ** random.integers(-6, 6, size)).astype(dtype)
    info = np.finfo(dtype)
    huge = min(float(info.max) / 2**20, 1e150)  # so that a sum of squares fits float64
    special = np.array(
        [
            0.0,
            -0.0,
            info.tiny,
            -info.tiny,
            info.smallest_subnormal,
            -info.smallest_subnormal,
            info.tiny / 3,
            huge,
            -huge,
        ],
        dtype,
    )
    chosen = random.random(size) < 0.1 * (seed % 2)
    values[chosen] = random.choice(special, chosen.sum())
    return values


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two float arrays are equal bit for bit; any NaN equals any other NaN."""
    return a.dtype == b.dtype and bool(
        np.array_equal(np.isnan(a), np.isnan(b))
        and np.array_equal(_bits(a)[~np.isnan(a)], _bits(b)[~np.isnan(b)])
    )


def _bits(a: np.ndarray) -> np.ndarray:
    return a.view(f"u{a.itemsize}")


each_isa = pytest.mark.parametrize("isa", kernels.isas())
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])

sizes = st.one_of(st.sampled_from(SIZES), st.integers(0, 300))
dtypes = st.sampled_from([np.float32, np.float64])
isas = st.sampled_from(kernels.isas())
threads = st.integers(1, 3)
offsets = st.one_of(st.just(0), st.integers(1, 15))
seeds = st.integers(0, 2**32 - 1)
