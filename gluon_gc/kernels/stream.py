"""The random stream that workers and servers share: draws, and jumps over draws."""

from __future__ import annotations

import numpy as np

from .library import Position, address_of, library


def draw(position: Position, n: int) -> np.ndarray:
    """The n draws from a position on, uint64."""
    draws = np.empty(n, np.uint64)
    library.gluon_gc_draw(position, n, draws.ctypes.data)
    return draws


def jump(state: np.ndarray, count: int) -> None:
    """Move a state, uint64, shape (2,), on by 0 <= count < 2**64 draws, in place."""
    library.gluon_gc_jump(address_of("state", state, 2, np.uint64, writes=True), count)


def jump_to_worker(state: np.ndarray, worker: int) -> None:
    """Move a state on by worker * 2**64 draws, in place."""
    library.gluon_gc_jump_to_worker(address_of("state", state, 2, np.uint64, writes=True), worker)
