"""The random stream of a chunk: its start, and its position.

The generator is that of operators/core/generator.h.
"""

from __future__ import annotations

import hashlib
from typing import Optional, Tuple

import numpy as np

from .. import kernels
from .params import CompressionParams

State = Tuple[int, int]
"""The two 64-bit words of an xorshift128+ generator."""

_THROWN_AWAY = 16  # the first draws of a state that is not well mixed are small
_AGGREGATOR = 2**32  # a node's number, beyond all workers'


def seeded(seed: int) -> np.ndarray:
    """BytePS's state for a seed: both words are the seed. uint64, shape (2,)."""
    return np.full(2, seed % 2**64, np.uint64)


def unseeded(entropy: bytes, index: int, begin: int) -> np.ndarray:
    """The state for a chunk that begins at element `begin` of parameter `index`.

    Parameters
    ----------
    entropy : bytes
        Random bytes, the same on every node.
    """
    digest = hashlib.sha256(entropy + b"%d,%d" % (index, begin)).digest()
    state = np.frombuffer(digest[:16], np.uint64).copy()
    kernels.jump(state, _THROWN_AWAY)
    return state


def start(
    params: CompressionParams, n: int, node: Optional[int], index: int, begin: int, entropy: bytes
) -> State:
    """The state from which a node draws for a chunk.

    With a seed the aggregator draws the numbers of worker 0, because BytePS's server gets the seed
    from the workers. Without a seed it has numbers of its own.

    Parameters
    ----------
    params : CompressionParams
        Their compressor draws. If its attribute `seed` is None, `entropy` takes its place.
    n : int
        Number of elements of the chunk.
    node : int or None
        The rank of a worker; None: the aggregator.
    index, begin, entropy
        As in `unseeded`.
    """
    compressor = params.compressor
    alike = compressor.traits.draws_alike
    if compressor.seed is None:
        state = unseeded(entropy, index, begin)
        aggregator = _AGGREGATOR
    else:  # BytePS adds k for randomk
        k = params.codec(n, "float32").draws if alike else 0
        state = seeded(compressor.seed + index + k)
        aggregator = 0
    if not alike:
        kernels.jump_to_worker(state, aggregator if node is None else node)
    first, second = state.tolist()
    return first, second


class Stream:
    """The position of a chunk in its random stream.

    Parameters
    ----------
    start : State, optional
        The result of `start`; zeros for a compressor that does not draw.
    """

    def __init__(self, start: Optional[State]) -> None:
        self._start, self._drawn = start or (0, 0), 0

    def take(self, draws: int) -> Tuple[int, int, int]:
        """The position of a call that takes this number of draws. The stream moves on by them."""
        position = (*self._start, self._drawn)
        self._drawn += draws
        return position

    def state(self) -> np.ndarray:
        """The stream's state, for a checkpoint; shape (2,), uint64."""
        state = np.array(self._start, np.uint64)
        kernels.jump(state, self._drawn)
        return state

    def load_state(self, state: np.ndarray) -> None:
        """Set the stream to a result of `state`."""
        first, second = state.tolist()
        self._start, self._drawn = (first, second), 0
