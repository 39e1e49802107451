"""Where the random stream of a chunk starts (operators/core/stream.h says how it goes on)."""

from __future__ import annotations

import hashlib
from typing import Tuple

from .. import kernels
from .base import Compressor

State = Tuple[int, int]
"""The two 64-bit words of an xorshift128+ generator."""

_WORD = 2**64
_THROWN_AWAY = 16  # the first draws of a state that is not well mixed are small


def seeded(seed: int) -> State:
    """The state that BytePS makes of a seed: both words are the seed."""
    return seed % _WORD, seed % _WORD


def unseeded(entropy: bytes, index: int, begin: int) -> State:
    """The state for a chunk that begins at element `begin` of parameter `index`.

    Parameters
    ----------
    entropy : bytes
        Random ones, the same on every node.
    """
    digest = hashlib.sha256(entropy + b"%d,%d" % (index, begin)).digest()
    state = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")
    return kernels.stream_jump(state, _THROWN_AWAY)


def start(
    compressor: Compressor, n: int, node: int, index: int, begin: int, entropy: bytes
) -> State:
    """The state from which a node draws for a chunk.

    Parameters
    ----------
    compressor : Compressor
        One that draws, with its seed as attribute `seed`; None takes `entropy`.
    n : int
        Number of elements of the chunk.
    node : int
        The rank of a worker, or the number of workers for the aggregator.
    index, begin, entropy
        As in `unseeded`.
    """
    if compressor.seed is None:
        state = unseeded(entropy, index, begin)
    else:
        state = seeded(compressor.seed + index + compressor.seed_offset(n))
    return kernels.stream_jump(state, node * _WORD) if compressor.draws == "apart" else state
