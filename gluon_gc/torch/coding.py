"""What a transfer does with those of its channels that are handled alike: encode, answer, deliver.

The three are called in this order, on threads of their own.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence

import numpy as np
import torch

from .. import kernels
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
        self._sent = [(c, _as(c.wire, places.sent[c])) for c in channels]
        self._owned = [
            (_as(c.wire, places.came[c]), _as(c.wire, places.answer[c]))
            for c in channels
            if c in places.came
        ]
        self._answers = [
            (c, _as(c.wire, places.answers[c])) for c in channels if c in places.answers
        ]

    def encode(self, job: Job) -> None:
        for channel, sent in self._sent:
            values = torch.from_numpy(job.of(channel.piece))
            sent.copy_(values if job.scale == 1.0 else values * job.scale)

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
        for channel, (answer,) in self._answers:
            values = job.of(channel.piece)
            torch.from_numpy(values).copy_(answer)
            if channel.checked and not kernels.values_finite(values):
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
        codecs = [coder.codec for coder in self._coders]
        states = [coder.carried for coder in self._coders]
        sent = [places.sent[channel] for channel in channels]
        self._compress = kernels.Batch("compress", codecs, states, sent)
        self._draws = codecs[0].traits.draws
        self._draws_alike = codecs[0].traits.draws_alike
        self._delivered = [channel for channel in channels if channel in places.answers]
        self._decompress = kernels.Batch(
            "decompress",
            [channel.coder.codec for channel in self._delivered],
            payloads=[places.answers[channel] for channel in self._delivered],
        )
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
        self._compress([job.address(piece) for piece in pieces], drawn, job.scale, ratios)
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
        pieces = [channel.piece for channel in self._delivered]
        self._decompress([job.address(piece) for piece in pieces], self._drawn)
        statuses = self._decompress.statuses
        return [piece.tensor for piece, status in zip(pieces, statuses) if not status.finite]


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


def _as(dtype: torch.dtype, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).view(dtype)
