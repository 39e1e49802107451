"""What a transfer does with those of its channels that are handled alike: encode, answer, deliver.

The three are called in this order, on threads of their own.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence

import numpy as np
import torch

from .. import kernels
from . import gpu
from .calls import calls_of
from .channel import PLAIN, SUMMED, Channel
from .job import Job


class Places(NamedTuple):
    """Where bytes are, by channel.

    Parameters
    ----------
    sent : dict
        What this worker makes of its values: uint8, shape (bytes,).
    came : dict
        What all workers sent to this owner: shape (workers, bytes).
    answer : dict
        What this owner makes of that: shape (bytes,).
    answers : dict
        What came of the sum: shape (1, bytes), or (workers, bytes) where all payloads come. Of
        channels that are not in it this worker gets nothing.
    """

    sent: Dict[Channel, np.ndarray]
    came: Dict[Channel, np.ndarray]
    answer: Dict[Channel, np.ndarray]
    answers: Dict[Channel, np.ndarray]


class Values:
    """Channels whose values travel as they are.

    Parameters
    ----------
    channels : sequence of Channel
    places : Places
    """

    def __init__(self, channels: Sequence[Channel], places: Places) -> None:
        self._sent = [(c, as_tensor(places.sent[c], c.wire)) for c in channels]
        self._owned = [
            (as_tensor(places.came[c], c.wire), as_tensor(places.answer[c], c.wire))
            for c in channels
            if c in places.came
        ]
        self._answers = [
            (c, as_tensor(places.answers[c], c.wire)) for c in channels if c in places.answers
        ]

    def encode(self, job: Job) -> None:
        with job.staged.queue():
            for channel, sent in self._sent:
                gpu.copy_scaled(job.of(channel.piece), job.scale, sent)

    def answer(self) -> None:
        for came, answer in self._owned:
            first, *others = came
            working = torch.float32 if came.itemsize < 4 else came.dtype
            total = first.to(working, copy=True)
            for values in others:
                total += values
            answer.copy_(total)

    def deliver(self, job: Job) -> List[str]:
        """The tensors that are not finite."""
        nonfinite = []
        with job.staged.queue():
            for channel, (answer,) in self._answers:
                gpu.copy(answer, job.of(channel.piece))
                if channel.checked and not is_finite(answer):
                    nonfinite.append(channel.piece.tensor)
        return nonfinite


class Payloads:
    """Channels that are compressed alike.

    Parameters
    ----------
    channels : sequence of Channel
    places : Places
    """

    def __init__(self, channels: Sequence[Channel], places: Places) -> None:
        self._channels, self._coders = channels, [channel.coder for channel in channels]
        self._draws = self._coders[0].codec.traits.draws
        self._draws_alike = self._coders[0].codec.traits.draws_alike
        self._delivered = [channel for channel in channels if channel in places.answers]
        self._calls = calls_of(channels)(channels, self._delivered, places)
        self._own(places)

    def _own(self, places: Places) -> None:
        """Make ready to answer."""
        owned = [channel for channel in self._channels if channel.aggregator is not None]
        self._aggregators = [channel.aggregator for channel in owned]
        if owned:
            self._aggregate = kernels.Batch(
                "aggregate",
                [aggregator.codec for aggregator in self._aggregators],
                [aggregator.carried for aggregator in self._aggregators],
                [places.answer[channel] for channel in owned],
                [places.came[channel] for channel in owned],
            )

    def encode(self, job: Job) -> None:
        pieces = [channel.piece for channel in self._channels]
        ratios = [job.ratios.get(piece.tensor, 1.0) for piece in pieces] if job.ratios else None
        drawn = [coder.take_draws() for coder in self._coders] if self._draws else None
        self._calls.compress(job, drawn, ratios)
        self._drawn = None
        if self._draws_alike:
            of_channel = dict(zip(self._channels, drawn))
            self._drawn = [of_channel[channel] for channel in self._delivered]

    def answer(self) -> None:
        if self._aggregators:
            drawn = [one.take_draws() for one in self._aggregators] if self._draws else None
            self._aggregate(positions=drawn)

    def deliver(self, job: Job) -> List[str]:
        """The tensors that are not finite."""
        statuses = self._calls.decompress(job, self._drawn)
        pairs = zip(self._delivered, statuses)
        return [channel.piece.tensor for channel, status in pairs if not status.finite]


class SummedPayloads(Payloads):
    """Channels whose payloads are values that add up."""

    def _own(self, places: Places) -> None:
        owned = [channel for channel in self._channels if channel in places.came]
        self._owned = [
            (places.came[c].view(c.chunk.dtype), places.answer[c].view(c.chunk.dtype))
            for c in owned
        ]

    def answer(self) -> None:
        for came, answer in self._owned:
            answer[:] = came[0]
            for values in came[1:]:
                answer += values


def codings(channels: Sequence[Channel], places: Places) -> List[object]:
    """One for each set of channels that are handled alike."""
    alike: Dict[object, List[Channel]] = {}
    for channel in channels:
        alike.setdefault(channel.compressed_alike, []).append(channel)
    kinds = {PLAIN: Values, SUMMED: SummedPayloads}
    return [kinds.get(several[0].kind, Payloads)(several, places) for several in alike.values()]


def as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as values."""
    return torch.from_numpy(array).view(dtype)


def is_finite(values: torch.Tensor) -> bool:
    """Whether values in the host's memory have no NaN and no infinity."""
    values = values.float() if values.dtype == torch.bfloat16 else values
    return kernels.values_finite(values.numpy())
