"""Encoding of a transfer's chunks, their summation by the owner, and decoding of the sums.

One `Coding` handles all chunks that a single call of the library can compress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Protocol, Sequence, Tuple

import numpy as np
import torch

from .. import kernels
from . import gpu
from .calls import GpuBatch, calls_of
from .exchanged_chunk import OVER_NCCL, PLAIN, SUMMED, ExchangedChunk
from .job import Job


@dataclass(frozen=True)
class Buffers:
    """The memory of messages, by chunk: arrays, or tensors in GPU memory.

    Parameters
    ----------
    sent : dict
        The payloads or values of this worker: uint8, shape (bytes,). Chunks that this worker does
        not send are missing.
    received : dict
        The payloads or values of all workers, for the chunks that this worker owns: uint8, shape
        (workers, bytes).
    answer : dict
        The sums of the chunks that this worker owns: uint8, shape (bytes,).
    answers : dict
        The sums of all owners: uint8, shape (1, bytes). For a chunk whose payloads all workers
        receive, these payloads: shape (workers, bytes). Chunks whose sum this worker does not get
        are missing.
    """

    sent: Dict[ExchangedChunk, np.ndarray]
    received: Dict[ExchangedChunk, np.ndarray]
    answer: Dict[ExchangedChunk, np.ndarray]
    answers: Dict[ExchangedChunk, np.ndarray]

    def outgoing(self, chunks: Sequence[ExchangedChunk]) -> List[ExchangedChunk]:
        """Return the chunks that this worker sends."""
        return [chunk for chunk in chunks if chunk in self.sent]

    def delivered(self, chunks: Sequence[ExchangedChunk]) -> List[ExchangedChunk]:
        """Return the chunks whose sum this worker gets."""
        return [chunk for chunk in chunks if chunk in self.answers]


class Coding(Protocol):
    """The work on some chunks of a transfer. The methods are called in this order.

    Each method may be called on a different thread.
    """

    def encode(self, job: Job) -> None:
        """Write this worker's payloads or values to the buffers."""

    def answer(self, job: Job) -> None:
        """As an owner, sum the payloads or values of all workers."""

    def deliver(self, job: Job) -> List[str]:
        """Write the sums to the job's values. Return the tensors with a NaN or an infinity."""


class PlainCoding(Coding):
    """Chunks that are sent uncompressed.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
    buffers : Buffers
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        self._sent = [(c, as_tensor(buffers.sent[c], c.wire)) for c in buffers.outgoing(chunks)]
        self._owned = [
            (as_tensor(buffers.received[c], c.wire), as_tensor(buffers.answer[c], c.wire))
            for c in chunks
            if c in buffers.received
        ]
        self._answers = [
            (c, as_tensor(buffers.answers[c], c.wire)) for c in buffers.delivered(chunks)
        ]

    def encode(self, job: Job) -> None:
        with job.staged.queue():
            for chunk, sent in self._sent:
                gpu.copy_scaled(job.of(chunk.piece), job.scale, sent)

    def answer(self, job: Job) -> None:
        for received, answer in self._owned:
            first, *others = received
            working = torch.float32 if received.itemsize < 4 else received.dtype
            total = first.to(working, copy=True)
            for values in others:
                total += values
            answer.copy_(total)

    def deliver(self, job: Job) -> List[str]:
        nonfinite = []
        with job.staged.queue():
            for chunk, (answer,) in self._answers:
                gpu.copy(answer, job.of(chunk.piece))
                if chunk.checked and not is_finite(answer):
                    nonfinite.append(chunk.piece.tensor)
        return nonfinite


class PayloadCoding(Coding):
    """Chunks with the same compression whose payloads must be decoded before they are added.

    Either the owner aggregates the payloads, or all workers receive all payloads.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
    buffers : Buffers
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        self._chunks, traits = chunks, chunks[0].coder.codec.traits
        self._draws, self._draws_alike = traits.draws, traits.draws_alike
        self._outgoing = buffers.outgoing(chunks)
        self._drawn: Optional[List[kernels.Position]] = None  # the positions that decoding needs
        self._calls = calls_of(chunks)(chunks, buffers)
        self._prepare_answers(buffers)

    def _prepare_answers(self, buffers: Buffers) -> None:
        owned = [chunk for chunk in self._chunks if chunk.aggregator is not None]
        self._owned = owned
        if owned:
            self._aggregate = kernels.Batch(
                "aggregate",
                [chunk.aggregator.codec for chunk in owned],
                payload=[buffers.answer[chunk] for chunk in owned],
                payloads=[buffers.received[chunk] for chunk in owned],
            )

    def encode(self, job: Job) -> None:
        names = [chunk.piece.tensor for chunk in self._outgoing]
        ratios = [job.ratios.get(name, 1.0) for name in names] if job.ratios else None
        states = [job.state_for(c.coder, name) for c, name in zip(self._outgoing, names)]
        drawn = [c.coder.take_draws() for c in self._outgoing] if self._draws else None
        self._calls.compress(job, states, drawn, ratios)
        if self._draws_alike:
            positions = dict(zip(self._outgoing, drawn))
            self._drawn = [positions[chunk] for chunk in self._calls.delivered]

    def answer(self, job: Job) -> None:
        if self._owned:
            states = [job.state_for(c.aggregator, c.piece.tensor) for c in self._owned]
            drawn = [c.aggregator.take_draws() for c in self._owned] if self._draws else None
            self._aggregate(positions=drawn, states=states)

    def deliver(self, job: Job) -> List[str]:
        finite = self._calls.decompress(job, self._drawn)
        pairs = zip(self._calls.delivered, finite)
        return [chunk.piece.tensor for chunk, is_finite in pairs if not is_finite]


class NcclCoding(PayloadCoding):
    """Chunks whose payloads stay in GPU memory: the owner's GPU aggregates them."""

    def _prepare_answers(self, buffers: Buffers) -> None:
        owned = [chunk for chunk in self._chunks if chunk.aggregator is not None]
        self._owned, self._device = owned, self._chunks[0].device
        with gpu.queue(self._device):
            self._aggregate = GpuBatch("aggregate", [c.aggregator for c in owned], self._device)
            self._aggregate.read([buffers.received[chunk] for chunk in owned])
            self._aggregate.write([buffers.answer[chunk] for chunk in owned])

    def answer(self, job: Job) -> None:
        with gpu.queue(self._device) as stream:
            self._aggregate.queue(stream)
            super().answer(job)


class SummedCoding(PayloadCoding):
    """Chunks with the same compression whose payloads are values that can be added."""

    def _prepare_answers(self, buffers: Buffers) -> None:
        owned = [chunk for chunk in self._chunks if chunk in buffers.received]
        self._owned = [
            (buffers.received[c].view(c.plan.dtype), buffers.answer[c].view(c.plan.dtype))
            for c in owned
        ]

    def answer(self, job: Job) -> None:
        for received, answer in self._owned:
            answer[:] = received[0]
            for values in received[1:]:
                answer += values


def codings(chunks: Sequence[ExchangedChunk], buffers: Buffers) -> List[Coding]:
    """Return a coding for each group of chunks that one call can compress."""
    groups: Dict[Tuple, List[ExchangedChunk]] = {}
    for chunk in chunks:
        groups.setdefault(chunk.coding, []).append(chunk)
    kinds = {PLAIN: PlainCoding, SUMMED: SummedCoding, OVER_NCCL: NcclCoding}
    return [kinds.get(group[0].kind, PayloadCoding)(group, buffers) for group in groups.values()]


def as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """View bytes as values of a dtype, in the same memory."""
    return torch.from_numpy(array).view(dtype)


def is_finite(values: torch.Tensor) -> bool:
    """Return whether values in host memory have no NaN and no infinity."""
    values = values.float() if values.dtype == torch.bfloat16 else values
    return kernels.values_finite(values.numpy())
