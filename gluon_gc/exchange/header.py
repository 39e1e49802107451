"""The header at the start of a message, in front of its chunks.

    stamp (28 bytes) | for each chunk: whether the sender has a gradient (1 byte)

In a step, the stamp must be the same on all workers. In an owner's answer, the stamp is replaced by
the result of this comparison, and "the sender" by "any worker".

After a caught error, a worker may exchange other tensors than its peers, or those of another step.
No later message would find its counterpart, so the first worker that notices it sends the outcome
to all others, in place of all messages that they may wait for.
"""

from __future__ import annotations

import zlib
from types import MappingProxyType
from typing import Collection, Iterable, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from .. import weight_samples
from ..plan import Slice
from ..weight_samples import ADVICE
from .collectives import WireSize

_STAMP_BYTES = 28
_PROBLEMS = {
    1: "worker {} is in another step than other workers",
    2: "worker {} has applied other averages than other workers",
    3: "the learning rates of worker {} differ from those of other workers",
    4: "worker {} exchanges other tensors than other workers",
    5: "the weights of parameter {1} differ between worker {0} and other workers. {2}",
}
_UNUSED = (
    "Its gradient was never averaged: wrap the module that has it in DistributedDataParallel, "
    "together with the rest of the model. If the weights may differ, do not pass the parameter to "
    "CompressionState"
)
_OUT_OF_STEP, _OTHER_TENSORS, _OTHER_WEIGHTS = 1, 4, 5
_TENSORS = 3  # the column of `Stamp.tensors`
_BROKEN = 2**32 - 1  # as `tensors`: the stamp is an outcome


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
    tensors : int
        A checksum of the number of the job and of its slices. It is always compared.
    sample, weight, largest : int
        A `WeightSample`; the bits of its floats. They may differ by rounding.
    """

    step: int = 0
    undone: int = 0
    rates: int = 0
    tensors: int = 0
    sample: int = 0
    weight: int = 0
    largest: int = 0


SAME = Stamp()
"""The outcome if all stamps are equal. Otherwise: a key of _PROBLEMS, a worker's rank, and the
number of the parameter whose weights differ, or 0."""


class OutOfStepError(RuntimeError):
    """The workers exchange different tensors, or those of different steps.

    Parameters
    ----------
    outcome : Stamp
    """

    def __init__(self, outcome: Stamp) -> None:
        super().__init__(problem(outcome))
        self.outcome = outcome


def checksum(rates: Iterable[float]) -> int:
    """Return a 32-bit checksum of learning rates."""
    return zlib.crc32(np.array(list(rates), np.float64).tobytes())


def bits(value: float) -> int:
    """Return the bits of a float32."""
    return int(np.float32(value).view(np.uint32))


def identity(slices: Iterable[Slice]) -> int:
    """Return a 32-bit checksum of the slices that a transfer sends."""
    return zlib.crc32(repr(list(slices)).encode())


def checksum_of_job(number: int, identity: int) -> int:
    """Return a checksum for `Stamp.tensors`, given a job's number and a transfer's `identity`."""
    return zlib.crc32(number.to_bytes(8, "little"), identity) % _BROKEN


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
    """Compare the stamps, shape (workers, 7), of the workers with these ranks."""
    if (stamps == stamps[0]).all() and stamps[0, _TENSORS] != _BROKEN:
        return SAME  # in nearly all steps
    (broken,) = np.nonzero(stamps[:, _TENSORS] == _BROKEN)
    if broken.size:
        return Stamp(*stamps[broken[0], :2].tolist())
    (with_gradients,) = np.nonzero(stamps[:, 0])
    for kind in range(1, _OTHER_WEIGHTS):
        workers = np.arange(len(stamps)) if kind == _OTHER_TENSORS else with_gradients
        column = stamps[workers, kind - 1]
        (others,) = np.nonzero(column != column[:1])
        if others.size:
            return Stamp(kind, ranks[workers[others[0]]])
    return _compared_weights(stamps[with_gradients, _TENSORS + 1 :], np.take(ranks, with_gradients))


def _compared_weights(samples: np.ndarray, ranks: np.ndarray) -> Stamp:
    """Compare the samples, shape (workers, 3), of the workers with these ranks."""
    sampled = samples[:, 0] != 0
    if sampled.any():
        weights = np.ascontiguousarray(samples[sampled, 1:]).view(np.float32)
        worker = weight_samples.first_different(weights)
        if worker is not None:
            number = int(samples[sampled][0, 0])
            return Stamp(_OTHER_WEIGHTS, int(ranks[sampled][worker]), number)
    return SAME


def read_answer(room: np.ndarray) -> Tuple[Stamp, np.ndarray]:
    """Return the outcome in an owner's answer, and which chunks have a gradient; see `read`."""
    outcome = room[:_STAMP_BYTES].view(np.uint32)[:3].tolist()
    return Stamp(*outcome), room[_STAMP_BYTES:] != 0


def broken(outcome: Stamp) -> np.ndarray:
    """Return the header of a worker that has noticed this outcome, without chunks: uint8."""
    return np.array(outcome._replace(tensors=_BROKEN), np.uint32).view(np.uint8)


def require_in_step(outcome: Stamp) -> None:
    """Raise OutOfStepError if later messages of the workers do not belong together either."""
    if outcome[0] in (_OUT_OF_STEP, _OTHER_TENSORS):
        raise OutOfStepError(outcome)


def problem(
    outcome: Stamp,
    names: Mapping[int, str] = MappingProxyType({}),
    unused: Collection[str] = (),
) -> str:
    """Return an error message for an outcome; empty if the stamps were equal.

    `names` has the names of parameters by their numbers in samples. The parameters in `unused` were
    never exchanged.
    """
    kind, rank, number, *_ = outcome
    name = names.get(number)
    advice = _UNUSED if name in unused else ADVICE
    return "" if outcome == SAME else _PROBLEMS[kind].format(rank, name, advice)
