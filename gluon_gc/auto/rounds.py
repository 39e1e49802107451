"""Chooses how often the algorithm local_steps exchanges, and with which compressor.

The model: in a round, the vectors of all parameters are exchanged one after the other, while
training waits. The share of a round is its seconds, divided by the seconds of the H steps from one
round to the next.
"""

from __future__ import annotations

import math
from typing import Dict, Mapping, NamedTuple, Optional, Sequence

from ..compression import CompressionParams, candidates
from ..compression.auto import PLAIN
from ..plan import Tensor
from .choice import Measured, Topology, seconds_of

SHARE = 0.1
"""The largest share of a round that the choice aims at."""
LEAST, MOST = 10, 500
"""The limits of a chosen H. With H = 1 or 2 and an outer momentum of 0.9, SGD does not converge."""
_USUAL = 30  # the H of DiLoCo, up to which the more accurate compressor counts more than H
_MULTIPLE = 5  # H is a multiple of this, so that noise rarely changes it


class Choice(NamedTuple):
    """A compressor and the number of steps between rounds.

    Parameters
    ----------
    name : str
        The name of the compressor's candidate (see `compression.candidates`).
    every : int
        H.
    seconds, share : float
        The predicted seconds of a round, and its share.
    """

    name: str
    every: int
    seconds: float
    share: float


def choose(
    round_seconds: Mapping[str, float],
    step_seconds: float,
    every: Optional[int] = None,
    least: int = LEAST,
) -> Choice:
    """Choose a compressor and H, so that the share of a round is at most 10 %.

    For each compressor, H is the smallest multiple of 5 from 10 to 500 that reaches this share, or
    500. The most accurate compressor that reaches it with an H of at most 30 is chosen. If there is
    none, the compressor with the smallest H is chosen. If H is given, the most accurate compressor
    that reaches the share is chosen, or else the fastest one.

    Parameters
    ----------
    round_seconds : mapping
        The seconds of a round with each candidate, by name, the most accurate first.
    step_seconds : float
        The seconds of a step without a round.
    every : int, optional
        The given H.
    least : int
        The lower limit of H, if it is more than 10.
    """
    choices = [
        Choice(name, steps, took, took / (steps * step_seconds))
        for name, took in round_seconds.items()
        for steps in [every or _smallest_every(took, step_seconds, least)]
    ]
    for choice in choices:
        if choice.share <= SHARE and (every or choice.every <= _USUAL):
            return choice
    return min(choices, key=lambda choice: (choice.every, max(SHARE, choice.share)))


def _smallest_every(round_seconds: float, step_seconds: float, least: int) -> int:
    """The smallest H that "auto" chooses for a round of this duration."""
    first = _MULTIPLE * math.ceil(max(LEAST, least) / _MULTIPLE)
    for every in range(first, MOST, _MULTIPLE):
        if round_seconds / (every * step_seconds) <= SHARE:
            return every
    return max(first, MOST)


def seconds_of_round(
    tensors: Sequence[Tensor],
    measured: Measured,
    topology: Topology,
    partition_bytes: int,
    min_compress_bytes: int,
) -> Dict[str, float]:
    """The predicted seconds of a round with each candidate, by name, the most accurate first.

    Tensors with fewer than `min_compress_bytes` bytes are not compressed.
    """
    totals = {}
    for name in names_of([tensor.params for tensor in tensors]):
        totals[name] = 0.0
        for tensor in tensors:
            way = name_for(tensor.params, name)
            params = ways(tensor.params)[way]
            if params.compressor is not None and tensor.num_bytes < min_compress_bytes:
                way, params = PLAIN, CompressionParams()
            totals[name] += seconds_of(tensor, way, params, measured, topology, partition_bytes)
    return totals


def names_of(several: Sequence[CompressionParams]) -> Sequence[str]:
    """The names of all candidates for these params, the most accurate first.

    The candidates of each accuracy begin with those of the stricter ones.
    """
    automatic = (list(candidates(params)) for params in several if params.accuracy is not None)
    return max(automatic, key=len, default=[PLAIN])


def ways(params: CompressionParams) -> Dict[str, CompressionParams]:
    """The compressions among which "auto" chooses for a parameter, by name.

    A parameter with a compressor of its own has only that. Its name is made of its options.
    """
    return candidates(params) if params.accuracy is not None else {repr(params.given()): params}


def name_for(params: CompressionParams, name: str) -> str:
    """The name of a parameter's way, if the candidate `name` is chosen for all parameters.

    A parameter whose accuracy does not allow it gets the smallest payloads that are allowed.
    """
    names = list(ways(params))
    return name if name in names else names[-1]
