"""The random stream, xorshift128+: positions, and jumps over many draws."""

from __future__ import annotations

import ctypes
from typing import Sequence

import numpy as np

from .library import Position, address_of, library


def position(state: Sequence[int] = (0, 0), draws: int = 0) -> Position:
    """The position in the random stream that is `draws` draws after a state of two words."""
    return Position((ctypes.c_uint64 * 2)(*map(int, state)), draws)


def jump(state: np.ndarray, count: int) -> None:
    """Advance a state (uint64, shape (2,)) by 0 <= count < 2**64 draws, in place."""
    library.gluon_gc_jump(address_of("state", state, 2, np.uint64, writes=True), count)


def jump_to_worker(state: np.ndarray, worker: int) -> None:
    """Advance a state by worker * 2**64 draws, in place."""
    library.gluon_gc_jump_to_worker(address_of("state", state, 2, np.uint64, writes=True), worker)
