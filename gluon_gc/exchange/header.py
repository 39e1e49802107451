"""The header at the start of a message, in front of its chunks.

    contributors, version: 2 bytes each | stamp: 28 bytes | a gradient? 1 byte for each chunk

In a step, the stamp must be the same on all workers. In an owner's answer, the stamp is replaced by
the result of this comparison. "Contributors" is the number of workers whose values are in the
message. There is a gradient if one of them has one.

After a caught error, a worker may exchange other tensors than its peers, or those of another step.
No later message would find its counterpart, so the first worker that notices it sends the outcome
to all others, in place of all messages that they may wait for.
"""

from __future__ import annotations

import struct
import zlib
from types import MappingProxyType
from typing import Collection, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from . import weight_samples
from .collectives import WireSize
from .plan import Slice

VERSION = 2
_HEAD = struct.Struct("<HH7I")
_TENSORS = 3  # the index in a stamp
_PROBLEMS = {
    1: "worker {} is in another step than other workers",
    2: "worker {} has applied other averages than other workers",
    3: "the learning rates of worker {} differ from those of other workers",
    4: "worker {} exchanges other tensors than other workers",
    5: "the weights of parameter {1} differ between worker {0} and other workers. {2}",
    6: "an exchange has failed on worker {}, whose error says why",
}
_UNUSED = (
    "Its gradient was never averaged: wrap the module that has it in DistributedDataParallel, "
    "together with the rest of the model. If the weights may differ, do not pass the parameter to "
    "CompressionState"
)
_OUT_OF_STEP, _OTHER_TENSORS, _OTHER_WEIGHTS, _FAILED = 1, 4, 5, 6
_BROKEN = 2**32 - 1  # as `tensors`: the stamp is an outcome


class Stamp(NamedTuple):
    """Numbers below 2^32 that must be the same on all workers in a step."""

    step: int = 0  # from 1; 0: this worker has no gradients, and its stamp is not compared
    undone: int = 0  # a checksum of the exchanges that were taken back so far
    rates: int = 0  # a checksum of the optimizer's learning rates
    tensors: int = 0  # a checksum of the job's number and of its slices; always compared
    sample: int = 0  # a `WeightSample`, and the bits of its floats, which may differ by rounding
    weight: int = 0
    largest: int = 0


SAME = Stamp()
"""The outcome if all stamps are equal. Otherwise: a key of _PROBLEMS, a worker's rank, and the
number of the parameter whose weights differ, or 0."""


class OutOfStepError(RuntimeError):
    """The workers exchange different tensors, or those of different steps, or one has failed.

    `outcome`: if other workers must be told; else they know it.
    """

    def __init__(self, message: str, outcome: Stamp | None = None) -> None:
        super().__init__(message)
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
    return WireSize(_HEAD.size + chunks)


def write(
    room: np.ndarray, stamp: Stamp, present: bool | Sequence[bool], contributors: int = 1
) -> None:
    """Write a header to its room: uint8, shape (bytes,). `present`: for all chunks or for each."""
    _HEAD.pack_into(room, 0, contributors, VERSION, *stamp)
    room[_HEAD.size :] = present


def read(rows: np.ndarray, ranks: Sequence[int]) -> tuple[Stamp, Sequence[int], int]:
    """Compare the headers of the workers with these ranks: uint8, shape (workers, bytes).

    Return the outcome, the indices of the chunks without a gradient, and how many contributed.
    """
    heads = [_HEAD.unpack_from(row) for row in rows]
    outcome = compared([stamp for _, _, *stamp in heads], ranks)
    return outcome, _unused(rows), sum(contributors for contributors, *_ in heads)


def _unused(rows: np.ndarray) -> list[int]:
    """Return the indices of the chunks without a gradient on any worker."""
    if 0 not in rows[0, _HEAD.size :].tobytes():
        return []  # in nearly all steps
    (unused,) = np.nonzero(~rows[:, _HEAD.size :].any(axis=0))
    return unused.tolist()


def compared(received: Sequence[Sequence[int]], ranks: Sequence[int]) -> Stamp:
    """Compare the stamps of the workers with these ranks."""
    if received.count(received[0]) == len(received) and received[0][_TENSORS] != _BROKEN:
        return SAME  # in nearly all steps
    stamps = np.array(received, np.uint32)
    tensors = stamps[:, _TENSORS]
    (broken,) = np.nonzero(tensors == _BROKEN)
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


def read_answer(rows: np.ndarray) -> tuple[Stamp, Sequence[int], int]:
    """Return the result of `read` that an owner has sent: uint8, shape (1, bytes)."""
    contributors, _, *outcome = _HEAD.unpack_from(rows[0])
    return Stamp(*outcome), _unused(rows), contributors


def broken(outcome: Stamp) -> np.ndarray:
    """Return the header of a worker that has noticed this outcome, without chunks: uint8."""
    room = np.zeros(_HEAD.size, np.uint8)
    write(room, outcome._replace(tensors=_BROKEN), (), 0)
    return room


def failed(rank: int) -> Stamp:
    """Return the outcome of an error on the worker with this rank."""
    return Stamp(_FAILED, rank)


def require_in_step(outcome: Stamp) -> None:
    """Raise OutOfStepError if later messages of the workers do not belong together either."""
    require_none_failed(outcome)
    if outcome[0] in (_OUT_OF_STEP, _OTHER_TENSORS):
        raise OutOfStepError(problem(outcome), outcome)


def require_none_failed(outcome: Stamp) -> None:
    """Raise OutOfStepError if a worker has failed, and makes no further call."""
    if outcome[0] == _FAILED:
        raise OutOfStepError(problem(outcome), outcome)


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
    advice = _UNUSED if name in unused else weight_samples.ADVICE
    return "" if outcome == SAME else _PROBLEMS[kind].format(rank, name, advice)
