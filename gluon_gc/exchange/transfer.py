"""Transfers: chunks that travel together in every step, and their stages."""

from __future__ import annotations

from types import MappingProxyType
from typing import (
    Any,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Protocol,
    Sequence,
)

import numpy as np

from . import header
from .arrays import Arrays
from .chunk import GATHERED, ExchangedChunk
from .coding import Buffers, codings, encode, encoding
from .collectives import Collectives, ToAll, ToOwners, WireSize
from .header import SAME, OutOfStepError, Stamp
from .job import Job, Task
from .statistics import Meter, shares_of
from .transport import Members, PeerError


class Stages(Protocol):
    """Tensors, or parts of tensors, that travel together in every step.

    The stages of a task are called in the order below, each on its own thread. An earlier stage may
    already handle the next job. All workers call each stage for the same jobs in the same order.
    Subclasses omit stages that have nothing to do.
    """

    meter: Meter  # bytes and seconds of this worker
    chunks: Sequence[ExchangedChunk] = ()  # whose bytes divide the meter's numbers
    collectives: Sequence[ToOwners | ToAll] = ()  # that workers may wait for

    def shares(self) -> Iterable[tuple[str, float]]:
        """Return, for each part, its tensor's name and its share of the meter's numbers."""
        return shares_of(self.chunks)

    def begin(self, task: Task) -> None:
        """Send the job's values to the workers of the same machine.

        This stage and `finish` exist only if machines sum their workers' values first.
        """

    def send(self, task: Task) -> None:
        """Send the job's values or payloads to the owners."""

    def answer(self, task: Task) -> None:
        """As an owner, sum the received data, and send the sum to all workers."""

    def deliver(self, task: Task) -> None:
        """Wait for the sums, and write them to the job's values."""

    def finish(self, task: Task) -> None:
        """Write sums that other workers of the machine received to the job's values."""

    def abandon(self, outcome: Stamp) -> None:
        """Send this outcome to all workers that may wait for a message of this transfer.

        No stage is called afterwards, but one may be running on another thread.
        """
        for collective in self.collectives:
            collective.send_instead(header.broken(outcome))


def _before_answer(stage: Callable[[Task], None], task: Task) -> None:
    """Call a stage. An error of this worker waits for the answer: others need the earlier tasks."""
    if task.error is None:
        try:
            stage(task)
        except (OutOfStepError, PeerError):
            raise
        except Exception as error:
            task.error = error


def _answer(task: Task) -> None:
    if task.error is not None:
        raise task.error
    task.transfer.answer(task)


STAGES: Sequence[Callable[[Task], None]] = (
    lambda task: _before_answer(task.transfer.begin, task),
    lambda task: _before_answer(task.transfer.send, task),
    _answer,
    lambda task: task.transfer.deliver(task),
    lambda task: task.transfer.finish(task),
)
"""The stages in their order, for a `Pipeline`."""


class Link(NamedTuple):
    """What a transfer needs to travel: the workers, the front end's arrays, and a tag."""

    members: Members
    arrays: Arrays
    collectives: Collectives
    tag: int  # the same on all workers, and different for each transfer


class Transfer(Stages):
    """Chunks that travel together, in a collective to their owners and one to all workers.

    `forward` has the rooms, as arrays of bytes, for answers and gathered payloads that this worker
    does not decode. They are on the device of the sums.
    """

    def __init__(
        self,
        chunks: Sequence[ExchangedChunk],
        link: Link,
        forward: Mapping[ExchangedChunk, Any] = MappingProxyType({}),
    ) -> None:
        members, self._arrays = link.members, link.arrays
        rank, ranks = members.rank, members.ranks
        gathered = [chunk for chunk in chunks if chunk.kind == GATHERED]
        owned = [
            [c for c in chunks if c.kind != GATHERED and c.owner == worker]
            for worker in range(len(ranks))
        ]
        others = [chunk for owner_chunks in owned for chunk in owner_chunks]
        self.chunks, self.meter = [*gathered, *others], Meter()
        self._identity = header.identity(chunk.piece for chunk in self.chunks)
        gathered_sizes, *sizes = map(wire_sizes, (gathered, *owned))
        headed, no_owners = with_headers(sizes)
        self._num_gathered = len(gathered_sizes)
        to_owners, to_all = link.collectives
        self._to_all = to_all(members, link.tag, gathered_sizes, sizes)
        self._to_owners = (
            to_owners(members, link.tag, headed, no_owners=no_owners) if others else None
        )
        self.collectives = [c for c in (self._to_owners, self._to_all) if c is not None]
        rooms, rows = iter(self._to_all.rooms), iter(self._to_all.rows)
        sent, answer, received, answers = {}, {}, {}, {}
        self._gathered = HeadedChunks(gathered, rooms, sent)
        self._answer = HeadedChunks(owned[rank], rooms, answer)
        self._gathered_rows = HeadedChunks(gathered, rows, answers, ranks)
        self._answers = [HeadedChunks(owner_chunks, rows, answers) for owner_chunks in owned]
        if self._to_owners is not None:
            rooms = iter(self._to_owners.rooms)
            self._sent = [
                HeadedChunks(owner_chunks, rooms, sent, headed=True) for owner_chunks in owned
            ]
            rows = iter(self._to_owners.rows)
            senders = [ranks[sender] for sender in self._to_owners.senders]
            self._received = HeadedChunks(owned[rank], rows, received, senders, headed=True)
        view = self._arrays.view
        self._forwarded = [
            (view(answers.pop(chunk).reshape(-1), "uint8"), view(room, "uint8"))
            for chunk, room in forward.items()
        ]
        buffers = Buffers(sent, received, answer, answers)
        self._of_gathered = codings([gathered], buffers, self._arrays)
        order = self._to_owners.order if self._to_owners is not None else ()
        self._of_others = codings([owned[w] for w in order], buffers, self._arrays)

    def send(self, task: Task) -> None:
        """Encode the job's values, and send them to their owners."""
        if self._to_owners is None:
            return
        with self.meter.timing("compress_seconds"):
            stamp = task.job.stamp_of(self._identity)
            for headed in self._sent:
                headed.write(task.job, stamp)
            self.meter.pushed_bytes += self._to_owners.start(encoding(self._of_others, task.job))

    def answer(self, task: Task) -> None:
        """Encode gathered chunks, sum the chunks that this worker owns, and send both to all."""
        if self._of_gathered:
            with self.meter.timing("compress_seconds"):
                self._gathered.write(task.job, task.job.stamp_of(self._identity))
                encode(self._of_gathered, task.job)
        if self._to_owners is not None:
            with self.meter.timing("wait_seconds"):
                self._to_owners.wait()
            self._aggregate(task.job)
            self._to_owners.expect()
        used = self._to_all.start()
        self.meter.pushed_bytes += sum(used[: self._num_gathered])  # without the answers

    def _aggregate(self, job: Job) -> None:
        """Sum the chunks that this worker owns. Unused chunks do not change their aggregator."""
        found = self._received.read()
        header.require_in_step(found.outcome)
        for coding in self._of_others:
            coding.answer(job)
        for chunk in found.unused:
            if chunk.aggregator is not None:
                chunk.aggregator.take_back_last()
        self._answer.write_answer(found)

    def deliver(self, task: Task) -> None:
        """Wait for the sums, and write them to the job's values."""
        with self.meter.timing("wait_seconds"):
            self.meter.pulled_bytes += self._to_all.wait()
        read = [self._gathered_rows.read(), *(headed.read_answer() for headed in self._answers)]
        for found in read:
            task.note(found.outcome)
            task.contributors = max(task.contributors, found.contributors)
        with self.meter.timing("decompress_seconds"):
            for coding in (*self._of_gathered, *self._of_others):
                task.nonfinite.append(coding.deliver(task.job))
            if self._forwarded:
                with task.job.request.sums.queue():
                    for answer, room in self._forwarded:
                        self._arrays.copy(answer, room)
            for found in read:
                if found.unused:
                    self._leave_out(task, found.unused)
        self._to_all.expect()
        self.meter.steps += 1

    def _leave_out(self, task: Task, unused: set[ExchangedChunk]) -> None:
        """Undo the exchange of chunks without a gradient on any worker."""
        sums = task.job.request.sums
        with sums.queue():
            for chunk in unused:
                self._arrays.zero(sums.of(chunk.piece))
        for chunk in unused:
            task.unused.add(chunk.piece.tensor)
            if chunk.coder is not None:
                chunk.coder.take_back_last()


def wire_sizes(chunks: Sequence[ExchangedChunk]) -> list[WireSize]:
    """Return the sizes of a header and of the chunks after it; empty without chunks."""
    return [header.wire_size(len(chunks)), *(c.wire_size for c in chunks)] if chunks else []


def with_headers(sizes: Sequence[list[WireSize]]) -> tuple[list[list[WireSize]], set[int]]:
    """Give a header to owners without chunks too. Return all sizes, and these owners."""
    no_owners = {owner for owner, owner_sizes in enumerate(sizes) if not owner_sizes}
    return [owner_sizes or [header.wire_size(0)] for owner_sizes in sizes], no_owners


class Found(NamedTuple):
    """What the headers of some workers say."""

    outcome: Stamp = SAME
    unused: set[ExchangedChunk] = frozenset()  # the chunks without a gradient
    contributors: int = 0


class HeadedChunks:
    """Chunks with a common header.

    `rooms` yields the memory of the header, then that of each chunk, which `buffers` gets. Memory
    of other headed chunks may follow. `read` compares the headers of the workers in `ranks`.
    `headed`: there is a header even without chunks.
    """

    def __init__(
        self,
        chunks: Sequence[ExchangedChunk],
        rooms: Iterator[np.ndarray],
        buffers: dict[ExchangedChunk, np.ndarray],
        ranks: Sequence[int] = (),
        headed: bool = False,
    ) -> None:
        self.chunks, self._ranks = chunks, ranks
        self._headed = headed or bool(chunks)
        if self._headed:
            self._header = next(rooms)
            buffers.update(zip(chunks, rooms))

    def write(self, job: Job, stamp: Stamp) -> None:
        """Write a header with a stamp, and the chunks that have a gradient."""
        if self._headed:
            absent = job.request.absent
            present = not absent or [chunk.piece.tensor not in absent for chunk in self.chunks]
            header.write(self._header, stamp, present, job.contributors)

    def read(self) -> Found:
        """Compare the headers of several workers."""
        if not self._headed:
            return Found()
        return self._found(*header.read(self._header, self._ranks))

    def write_answer(self, found: Found) -> None:
        """Write the result of `read` as an owner's header."""
        if self.chunks:
            present = not found.unused or [chunk not in found.unused for chunk in self.chunks]
            header.write(self._header, found.outcome, present, found.contributors)

    def read_answer(self) -> Found:
        """Return the result of `read` from an owner's header."""
        return self._found(*header.read_answer(self._header)) if self.chunks else Found()

    def _found(self, outcome: Stamp, unused: Sequence[int], contributors: int) -> Found:
        return Found(outcome, {self.chunks[number] for number in unused}, contributors)
