"""The random stream of a chunk: its initial state, and its position.

The generator, xorshift128+, is in operators/core/generator.h.
"""

from __future__ import annotations

import hashlib
from typing import Tuple

import numpy as np

from .. import kernels
from .params import CompressionParams

State = Tuple[int, int]
"""The two 64-bit words of an xorshift128+ generator."""

_THROWN_AWAY = 16  # draws; the first ones are small if the state is not well mixed
_AGGREGATOR = 2**32  # the aggregator's number; workers have smaller ones


def unseeded(entropy: bytes, index: int, begin: int) -> np.ndarray:
    """The initial state without a seed. Array of uint64, shape (2,).

    `entropy` is the same on every node. `index` is the parameter's position in its trainer, and
    `begin` the first element of the chunk in the parameter.
    """
    digest = hashlib.sha256(entropy + b"%d,%d" % (index, begin)).digest()
    state = np.frombuffer(digest[:16], np.uint64).copy()
    kernels.jump(state, _THROWN_AWAY)
    return state


def start(
    params: CompressionParams, n: int, node: int | None, index: int, begin: int, entropy: bytes
) -> State:
    """The initial state of a node's random stream for a chunk of n elements.

    `node` is the rank of a worker, or None for the aggregator, which has a stream of its own. But
    with a seed, it has the stream of worker 0 if the compressor's `aggregator_repeats` is True, as
    in BytePS. Without a seed, `entropy` is used.
    """
    compressor, aggregator = params.compressor, _AGGREGATOR
    draws_alike = compressor.traits.draws_alike
    if compressor.seed is None:
        state = unseeded(entropy, index, begin)
    else:  # BytePS adds k to the seed for randomk
        k = params.codec(n, "float32").draws if draws_alike else 0
        state = np.full(2, (compressor.seed + index + k) % 2**64, np.uint64)  # as in BytePS
        aggregator = 0 if compressor.aggregator_repeats else _AGGREGATOR
    if not draws_alike:
        kernels.jump_to_worker(state, aggregator if node is None else node)
    first, second = state.tolist()
    return first, second


class Stream:
    """A random stream. `drawn` counts its draws: an earlier number undoes the draws since then."""

    def __init__(self, start: State | None) -> None:
        self._start, self.drawn = start or (0, 0), 0
        self._drawn_before = 0  # before the last `take`

    def take(self, draws: int) -> tuple[int, int, int]:
        """Return the current position, and advance the stream by a number of draws."""
        position = (*self._start, self.drawn)
        self._drawn_before = self.drawn
        self.drawn += draws
        return position

    def take_back(self) -> None:
        self.drawn = self._drawn_before

    def state(self, drawn: int | None = None) -> np.ndarray:
        """The state after a number of draws, by default now. Array of uint64, shape (2,)."""
        state = np.array(self._start, np.uint64)
        kernels.jump(state, self.drawn if drawn is None else drawn)
        return state

    def load_state(self, state: np.ndarray) -> None:
        """Continue from a state that `state` returned."""
        first, second = state.tolist()
        self._start, self.drawn, self._drawn_before = (first, second), 0, 0
