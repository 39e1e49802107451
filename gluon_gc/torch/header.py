"""The header at the start of a message, in front of its chunks.

    stamp (12 bytes) | for each chunk: whether the sender has a gradient (1 byte)

In a step, the stamp must be the same on all workers. In an owner's answer, the stamp is replaced by
the result of this comparison, and "the sender" by "any worker".
"""

from __future__ import annotations

import zlib
from typing import Iterable, NamedTuple, Sequence, Tuple

import numpy as np

from .collectives import WireSize

_STAMP_BYTES = 12
_PROBLEMS = {
    1: "worker {} is in another step than other workers",
    2: "worker {} has applied other averages than other workers",
    3: "the learning rates of worker {} differ from those of other workers",
}


class Stamp(NamedTuple):
    """Numbers below 2^32 that must be the same on all workers in a step.

    Parameters
    ----------
    step : int
        The number of the step, from 1. 0: this worker has no gradients, and its stamp is not
        compared.
    undone : int
        A checksum of the exchanges that were taken back so far.
    rates : int
        A checksum of the optimizer's learning rates.
    """

    step: int = 0
    undone: int = 0
    rates: int = 0


SAME = Stamp()
"""The outcome if all stamps are equal. Otherwise: a key of _PROBLEMS, a worker's rank, and 0."""


def checksum(rates: Iterable[float]) -> int:
    """Return a 32-bit checksum of learning rates."""
    return zlib.crc32(np.array(list(rates), np.float64).tobytes())


def wire_size(chunks: int) -> WireSize:
    """Return the size of a header for this number of chunks."""
    return WireSize(_STAMP_BYTES + chunks)


def write(room: np.ndarray, stamp: Stamp, present: Sequence[bool]) -> None:
    """Write a header to its room: uint8, shape (bytes,)."""
    room[:_STAMP_BYTES].view(np.uint32)[:] = stamp
    room[_STAMP_BYTES:] = present


def read(rows: np.ndarray, ranks: Sequence[int]) -> Tuple[Stamp, np.ndarray]:
    """Compare the headers of several workers.

    Parameters
    ----------
    rows : array of uint8, shape (workers, bytes)
        The headers.
    ranks : sequence of int
        The ranks of these workers.

    Returns
    -------
    Stamp
        The outcome.
    array of bool, shape (chunks,)
        Whether any worker has a gradient.
    """
    outcome = compared(rows[:, :_STAMP_BYTES].view(np.uint32), ranks)
    return outcome, rows[:, _STAMP_BYTES:].any(axis=0)


def compared(stamps: np.ndarray, ranks: Sequence[int]) -> Stamp:
    """Compare the stamps, shape (workers, 3), of the workers with these ranks."""
    (workers,) = np.nonzero(stamps[:, 0])
    for kind in _PROBLEMS:
        column = stamps[workers, kind - 1]
        (others,) = np.nonzero(column != column[:1])
        if others.size:
            return Stamp(kind, ranks[workers[others[0]]])
    return SAME


def read_answer(room: np.ndarray) -> Tuple[Stamp, np.ndarray]:
    """Return the outcome in an owner's answer, and which chunks have a gradient; see `read`."""
    return Stamp(*room[:_STAMP_BYTES].view(np.uint32).tolist()), room[_STAMP_BYTES:] != 0


def problem(outcome: Stamp) -> str:
    """Return an error message for an outcome; empty if the stamps were equal."""
    return "" if outcome == SAME else _PROBLEMS[outcome[0]].format(outcome[1])
