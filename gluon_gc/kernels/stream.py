"""The random stream that workers and servers share: draws, and jumps over draws.

A stream is its state, an array of two uint64, which every function moves on in place.
"""

from __future__ import annotations

import ctypes

import numpy as np

from .library import address_of, declare, library, pointer, size

declare("stream_draw", None, pointer, size, pointer)
declare("stream_jump", None, pointer, ctypes.c_uint64)
declare("stream_jump_to_worker", None, pointer, ctypes.c_uint64)


def stream_address(stream: np.ndarray) -> int:
    return address_of("stream", stream, 2, np.uint64, writes=True)


def stream_draw(stream: np.ndarray, n: int) -> np.ndarray:
    """The next n draws, uint64."""
    draws = np.empty(n, np.uint64)
    library.gluon_gc_stream_draw(stream_address(stream), n, draws.ctypes.data)
    return draws


def stream_jump(stream: np.ndarray, count: int) -> None:
    """Move on by 0 <= count < 2**64 draws."""
    library.gluon_gc_stream_jump(stream_address(stream), count)


def stream_jump_to_worker(stream: np.ndarray, worker: int) -> None:
    """Move on by worker * 2**64 draws."""
    library.gluon_gc_stream_jump_to_worker(stream_address(stream), worker)
