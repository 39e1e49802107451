"""Encoding of a transfer's chunks, their summation by the owner, and decoding of the sums.

One `Coding` handles all chunks with the same compression. It encodes them in parts, for example
those of one owner after those of another, so that a part is sent while the next one is encoded.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Protocol, Sequence

from .. import kernels
from .arrays import Arrays, Positions, Ratios, States
from .chunk import PLAIN, SUMMED, ExchangedChunk
from .job import Job


@dataclass(frozen=True)
class Buffers:
    """The memory of messages, by chunk: arrays of uint8, or a front end's in GPU memory."""

    sent: dict[ExchangedChunk, Any]  # what this worker sends; shape (bytes,)
    received: dict[ExchangedChunk, Any]  # what all send to this owner; shape (workers, bytes)
    answer: dict[ExchangedChunk, Any]  # the sums of this owner; shape (bytes,)
    answers: dict[ExchangedChunk, Any]
    """The sums that this worker gets from all owners: shape (1, bytes). If it gets the payloads of
    all workers instead: shape (workers, bytes)."""

    def outgoing(self, chunks: Sequence[ExchangedChunk]) -> list[ExchangedChunk]:
        """Return the chunks that this worker sends."""
        return [chunk for chunk in chunks if chunk in self.sent]

    def aggregated(self, chunks: Sequence[ExchangedChunk]) -> list[ExchangedChunk]:
        """Return the chunks whose payloads this worker aggregates."""
        return [chunk for chunk in chunks if chunk.aggregator is not None]

    def delivered(self, chunks: Sequence[ExchangedChunk]) -> list[ExchangedChunk]:
        """Return the chunks whose sum this worker gets."""
        return [chunk for chunk in chunks if chunk in self.answers]


Parts = Sequence[Sequence[ExchangedChunk]]
"""Chunks in the parts that are encoded one after the other."""


class Coding(Protocol):
    """The work on some chunks of a transfer. The methods are called in this order.

    Each method may be called on a different thread.
    """

    def encode(self, job: Job) -> Iterable[None]:
        """Write this worker's payloads or values to the buffers. The result yields after each part.

        Without reading the result, not all may be written.
        """

    def answer(self, job: Job) -> None:
        """As an owner, sum the payloads or values of all workers."""

    def deliver(self, job: Job) -> Iterable[str]:
        """Write the sums to the job's values. Return the tensors with a NaN or an infinity.

        To read the result may take until a GPU has written the sums.
        """


class PlainCoding(Coding):
    """Chunks that are sent uncompressed.

    As float16, gradients are divided by the loss scale when they have arrived: without it, small
    ones would be rounded to zero.
    """

    def __init__(self, parts: Parts, buffers: Buffers, arrays: Arrays) -> None:
        self._arrays, view = arrays, arrays.view
        chunks, self._encoded = chunks_of(parts), [None] * len(parts)
        self._sent = [(c, view(buffers.sent[c], c.wire)) for c in buffers.outgoing(chunks)]
        self._owned = [
            (view(buffers.received[c], c.wire), view(buffers.answer[c], c.wire))
            for c in chunks
            if c in buffers.received
        ]
        self._answers = [(c, view(buffers.answers[c], c.wire)) for c in buffers.delivered(chunks)]
        first = chunks[0]
        memory = [buffer for _, buffer in (*self._sent, *self._answers)]
        memory += [buffer for pair in self._owned for buffer in pair]
        self._order = arrays.order(first.device if first.on_gpu else arrays.host, memory)

    def encode(self, job: Job) -> Iterable[None]:
        values = job.request.values
        with values.queue(), self._order.queue():
            for chunk, sent in self._sent:
                scale = job.scale * _divisor_on_arrival(chunk, job)
                self._arrays.copy(values.of(chunk.piece), sent, scale)
        return self._encoded

    def answer(self, job: Job) -> None:
        with self._order.queue():
            for received, answer in self._owned:
                self._arrays.sum_rows(received, answer)

    def deliver(self, job: Job) -> Iterator[str]:
        checks, values = [], job.request.sums
        with values.queue(), self._order.queue():
            for chunk, (answer,) in self._answers:
                self._arrays.copy(answer, values.of(chunk.piece))
                divisor = _divisor_on_arrival(chunk, job)
                if divisor != 1.0:
                    self._arrays.multiply(values.of(chunk.piece), 1 / divisor)
                if chunk.checked:
                    checks.append((chunk.piece.tensor, self._arrays.check_finite(answer)))
        return (name for name, is_finite in checks if not is_finite())


def _divisor_on_arrival(chunk: ExchangedChunk, job: Job) -> float:
    return job.request.divisor if chunk.wire == "float16" else 1.0


class PayloadCoding(Coding):
    """Chunks with the same compression whose payloads must be decoded before they are added.

    Either the owner aggregates the payloads, or all workers receive all payloads.
    """

    def __init__(self, parts: Parts, buffers: Buffers, arrays: Arrays) -> None:
        chunks = chunks_of(parts)
        traits = chunks[0].coder.codec.traits
        self._draws, self._draws_alike = traits.draws, traits.draws_alike
        self._outgoing, aggregated = buffers.outgoing(chunks), buffers.aggregated(chunks)
        self._coders = [chunk.coder for chunk in self._outgoing]
        self._names = [chunk.piece.tensor for chunk in self._outgoing]
        self._aggregators = [chunk.aggregator for chunk in aggregated]
        self._aggregated = [chunk.piece.tensor for chunk in aggregated]
        self._drawn: list[kernels.Position] | None = None  # the positions that decoding needs
        self._calls = arrays.calls(parts, buffers)

    def encode(self, job: Job) -> Iterable[None]:
        ratios = job.request.ratios
        ratios = [ratios.get(name, 1.0) for name in self._names] if ratios else None
        states = job.states_for(self._coders, self._names)
        drawn = [coder.take_draws() for coder in self._coders] if self._draws else None
        if self._draws_alike:
            positions = dict(zip(self._outgoing, drawn))
            self._drawn = [positions[chunk] for chunk in self._calls.delivered]
        return self._calls.compress(job, states, drawn, ratios)

    def answer(self, job: Job) -> None:
        if self._aggregators:
            states = job.states_for(self._aggregators, self._aggregated)
            drawn = [each.take_draws() for each in self._aggregators] if self._draws else None
            self._calls.aggregate(states, drawn)

    def deliver(self, job: Job) -> Iterator[str]:
        return self._nonfinite(self._calls.decompress(job, self._drawn))

    def _nonfinite(self, finite: Iterable[bool]) -> Iterator[str]:
        for chunk, is_finite in zip(self._calls.delivered, finite):
            if not is_finite:
                yield chunk.piece.tensor


class SummedCoding(PayloadCoding):
    """Chunks with the same compression whose payloads are values that can be added."""

    def __init__(self, parts: Parts, buffers: Buffers, arrays: Arrays) -> None:
        super().__init__(parts, buffers, arrays)
        self._owned = [
            (buffers.received[c].view(c.plan.dtype), buffers.answer[c].view(c.plan.dtype))
            for c in chunks_of(parts)
            if c in buffers.received
        ]

    def answer(self, job: Job) -> None:
        for received, answer in self._owned:
            answer[:] = received[0]
            for values in received[1:]:
                answer += values


class HostCalls:
    """`arrays.Calls` on the CPU, for values in host memory."""

    def __init__(self, parts: Parts, buffers: Buffers) -> None:
        chunks = chunks_of(parts)
        self.outgoing, self.delivered = buffers.outgoing(chunks), buffers.delivered(chunks)
        ends = [0, *itertools.accumulate(len(buffers.outgoing(part)) for part in parts)]
        self._ranges = list(zip(ends, ends[1:]))
        self._encoded = [chunk.piece for chunk in self.outgoing]
        self._written = [chunk.piece for chunk in self.delivered]
        self._compress = kernels.Batch(
            "compress",
            [chunk.coder.codec for chunk in self.outgoing],
            payload=[buffers.sent[chunk] for chunk in self.outgoing],
        )
        self._aggregate = batch_of_aggregators(buffers.aggregated(chunks), buffers)
        self._decompress = batch_of_answers("decompress", self.delivered, buffers)

    def compress(
        self, job: Job, states: States, positions: Positions, ratios: Ratios
    ) -> Iterator[None]:
        addresses = job.request.values.addresses(self._encoded)
        return self._compress_parts(addresses, positions, job.scale, ratios, states)

    def _compress_parts(self, *arguments: Any) -> Iterator[None]:
        self._compress.prepare(*arguments)
        for begin, end in self._ranges:
            self._compress.run(begin, end)
            yield

    def aggregate(self, states: States, positions: Positions) -> None:
        self._aggregate(positions=positions, states=states)

    def decompress(self, job: Job, positions: Positions) -> list[bool]:
        self._decompress(job.request.sums.addresses(self._written), positions)
        return finite(self._decompress)


def batch_of_aggregators(aggregated: Sequence[ExchangedChunk], buffers: Buffers) -> kernels.Batch:
    """Return calls on the CPU that aggregate payloads."""
    return kernels.Batch(
        "aggregate",
        [chunk.aggregator.codec for chunk in aggregated],
        payload=[buffers.answer[chunk] for chunk in aggregated],
        payloads=[buffers.received[chunk] for chunk in aggregated],
    )


def batch_of_answers(
    function: str, delivered: Sequence[ExchangedChunk], buffers: Buffers
) -> kernels.Batch:
    """Return calls on the CPU for the sums that this worker gets."""
    codecs = [chunk.coder.codec for chunk in delivered]
    return kernels.Batch(function, codecs, payloads=[buffers.answers[c] for c in delivered])


def finite(batch: kernels.Batch) -> list[bool]:
    """Return for each call whether its values are finite."""
    return [bool(status.finite) for status in batch.statuses]


def chunks_of(parts: Parts) -> list[ExchangedChunk]:
    """Return the chunks of all parts."""
    return [chunk for part in parts for chunk in part]


def codings(parts: Parts, buffers: Buffers, arrays: Arrays) -> list[Coding]:
    """Return a coding for each group of chunks with the same compression."""
    groups: dict[tuple, list[list[ExchangedChunk]]] = {}
    for number, part in enumerate(parts):
        for chunk in part:
            groups.setdefault(chunk.coding, [[] for _ in parts])[number].append(chunk)
    kinds = {PLAIN: PlainCoding, SUMMED: SummedCoding}
    return [
        kinds.get(kind, PayloadCoding)(group, buffers, arrays)
        for (kind, *_), group in groups.items()
    ]


def encoding(several: Iterable[Coding], job: Job) -> Iterator[Any]:
    """Encode the chunks of several codings. The result yields after each part of all of them.

    Without any coding, it yields for ever.
    """
    return zip(itertools.repeat(None), *(coding.encode(job) for coding in several))


def encode(several: Iterable[Coding], job: Job) -> None:
    """Encode all chunks of several codings."""
    for coding in several:
        for _ in coding.encode(job):
            pass
