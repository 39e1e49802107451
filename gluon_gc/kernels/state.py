"""The state that a codec updates in each call, and the text form of its options."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .library import Position

Layout = Dict[str, Tuple[Tuple[int, ...], str]]
"""Shape and dtype of arrays, by name."""


class State(NamedTuple):
    """The arrays that a codec updates in each call. They are zeros before the first call.

    Parameters
    ----------
    momentum : array of T, shape (n,), or None
        The momentum, with the option "mu".
    memory : tuple of arrays of T
        The residual of error feedback, in the form that the compressor needs. `Codec.memory` has
        the sizes.
    """

    momentum: Optional[np.ndarray] = None
    memory: Tuple[np.ndarray, ...] = ()


def aligned_zeros(n: int, dtype: Any) -> np.ndarray:
    """Zeros at a multiple of 64 bytes: workspaces need it, and states are then written faster."""
    data = np.zeros(n * np.dtype(dtype).itemsize + 64, np.uint8)
    return data[-data.ctypes.data % 64 :][: data.size - 64].view(dtype)


def position(state: Sequence[int] = (0, 0), draws: int = 0) -> Position:
    """The position in the random stream that is `draws` draws after a state of two words."""
    return Position((ctypes.c_uint64 * 2)(*map(int, state)), draws)


def as_text(options: Mapping[str, Any]) -> str:
    """The options in the form that the library reads: a line "name=value" for each."""
    return "".join(f"{name}={_value(value)}\n" for name, value in options.items())


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "".join(f"{float(element)!r}," for element in value)
    return str(value) if isinstance(value, str) else repr(value)
