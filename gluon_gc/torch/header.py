"""The header of a message between workers, in front of its chunks.

It has a stamp, which must be the same on all workers in a step, and for each chunk whether the
sender has a gradient. In an owner's answer, the outcome of the comparison replaces the stamp.
"""

from __future__ import annotations

import zlib
from typing import Iterable, NamedTuple, Sequence, Tuple

import numpy as np

from .collectives import WireSize

_STAMP_BYTES = 12
_PROBLEMS = {
    1: "worker {} is in another step than other workers",
    2: "worker {} has left out other steps than other workers",
    3: "the learning rates of worker {} differ from those of other workers",
}


class Stamp(NamedTuple):
    """Numbers below 2^32 that all workers must share in a step.

    Parameters
    ----------
    step : int
        From 1; 0: this worker has no gradients, and nothing of its stamp is compared.
    left_out : int
        How many steps were left out so far.
    rates : int
        A checksum of the optimizer's learning rates.
    """

    step: int = 0
    left_out: int = 0
    rates: int = 0


SAME = Stamp()
"""The outcome if stamps were the same. Otherwise: a key of _PROBLEMS, a worker's rank, and 0."""


def checksum(rates: Iterable[float]) -> int:
    """A 32-bit checksum of learning rates."""
    return zlib.crc32(np.array(list(rates), np.float64).tobytes())


def wire_size(chunks: int) -> WireSize:
    """The bytes of a header for this number of chunks."""
    return WireSize(_STAMP_BYTES + chunks)


def write(room: np.ndarray, stamp: Stamp, present: Sequence[bool]) -> None:
    """Write a header to its room: uint8, shape (bytes,)."""
    room[:_STAMP_BYTES].view(np.uint32)[:] = stamp
    room[_STAMP_BYTES:] = present


def read(rows: np.ndarray, ranks: Sequence[int]) -> Tuple[Stamp, np.ndarray]:
    """Compare headers: uint8, shape (workers, bytes), of the workers of these ranks.

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
    """The outcome of comparing stamps, shape (workers, 3), of the workers of these ranks."""
    (workers,) = np.nonzero(stamps[:, 0])
    for kind in _PROBLEMS:
        column = stamps[workers, kind - 1]
        (others,) = np.nonzero(column != column[:1])
        if others.size:
            return Stamp(kind, ranks[workers[others[0]]])
    return SAME


def read_answer(room: np.ndarray) -> Tuple[Stamp, np.ndarray]:
    """The outcome in an answer, and which chunks have a gradient; as `read` returns them."""
    return Stamp(*room[:_STAMP_BYTES].view(np.uint32).tolist()), room[_STAMP_BYTES:] != 0


def problem(outcome: Stamp) -> str:
    """An outcome in words; empty if the stamps were the same."""
    return "" if outcome == SAME else _PROBLEMS[outcome[0]].format(outcome[1])
