"""Memory for states and workspaces."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

_LINE = 64  # bytes
_HUGE_PAGE = 2 * 1024 * 1024  # bytes
_BLOCK = 32 * 1024 * 1024  # bytes
_SMALL = 64 * 1024  # bytes; smaller arrays have memory of their own
_LARGE = _BLOCK // 2  # so have larger ones


def aligned_zeros(n: int, dtype: Any) -> np.ndarray:
    """Zeros at a multiple of 64 bytes: workspaces need it, and states are then written faster."""
    size = n * np.dtype(dtype).itemsize
    if size < _SMALL:
        memory = np.zeros(size + _LINE, np.uint8)
        return memory[-memory.ctypes.data % _LINE :][:size].view(dtype)
    if size < _LARGE:
        memory = _blocks.take(size)
    else:
        memory = np.empty(size + _HUGE_PAGE, np.uint8)
        memory = memory[-memory.ctypes.data % _HUGE_PAGE :][:size]
    memory.fill(0)
    return memory.view(dtype)


class _Blocks(threading.local):
    """Cuts memory from blocks. A block is freed with its last array.

    NumPy asks the system for huge pages where it allocates 4 MB or more. A compressor reads and
    writes up to five arrays at once; in small pages, onebit with feedback and momentum takes 1.05
    to 1.25 of the time.
    """

    def __init__(self) -> None:
        self._block, self._end = weakref.ref(np.empty(0, np.uint8)), 0

    def take(self, size: int) -> np.ndarray:
        """Return memory that nothing uses: uint8, shape (size,)."""
        block = self._block()
        if block is None or self._end + size > block.size:
            block = np.empty(_BLOCK, np.uint8)
            self._block, self._end = weakref.ref(block), -block.ctypes.data % _HUGE_PAGE
        begin = self._end
        self._end += -(-size // _LINE) * _LINE + _LINE  # lines apart: arrays of 2^k bytes collide
        return block[begin : begin + size]


_blocks = _Blocks()
