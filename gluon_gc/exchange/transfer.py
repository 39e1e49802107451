"""Transfer: chunks that travel together, in a collective to their owners and one to all workers."""

from __future__ import annotations

from typing import Dict, Iterator, List, Sequence, Set, Tuple

import numpy as np
import torch.distributed as dist

from . import header
from .coding import Buffers, codings
from .collectives import ToAll, ToOwners, WireSize
from .exchanged_chunk import GATHERED, ExchangedChunk
from .groups import Pair
from .header import SAME, Stamp
from .job import Job
from .stages import Stages
from .stats import Meter, shares_of


class Transfer(Stages[Job]):
    """Chunks that travel together.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
    groups : pair of ProcessGroup
        One for each of the two collectives.
    tag : int
        The same on all workers, and different for each transfer.

    Attributes
    ----------
    chunks : list of ExchangedChunk
    meter : Meter
        The bytes and seconds of all chunks together.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], groups: Pair, tag: int) -> None:
        first, second = groups
        workers, rank = dist.get_world_size(first), dist.get_rank(first)
        ranks = dist.get_process_group_ranks(first)
        gathered = [chunk for chunk in chunks if chunk.kind == GATHERED]
        owned = [
            [c for c in chunks if c.kind != GATHERED and c.owner == worker]
            for worker in range(workers)
        ]
        others = [chunk for owner_chunks in owned for chunk in owner_chunks]
        self.chunks, self.meter = [*gathered, *others], Meter()
        self._identity = header.identity(chunk.piece for chunk in self.chunks)
        gathered_sizes, *sizes = map(wire_sizes, (gathered, *owned))
        headed, no_owners = with_headers(sizes)
        self._num_gathered = len(gathered_sizes)
        self._to_all = ToAll(second, tag, gathered_sizes, sizes)
        self._to_owners = ToOwners(first, tag, headed, no_owners) if others else None
        rooms, rows = iter(self._to_all.rooms), iter(self._to_all.rows)
        sent, answer, received, answers = {}, {}, {}, {}
        self._gathered = Section(gathered, rooms, sent)
        self._answer = Section(owned[rank], rooms, answer)
        self._gathered_rows = Section(gathered, rows, answers, ranks)
        self._answers = [Section(owner_chunks, rows, answers) for owner_chunks in owned]
        if self._to_owners is not None:
            rooms = iter(self._to_owners.rooms)
            self._sent = [Section(owner_chunks, rooms, sent, headed=True) for owner_chunks in owned]
            rows = iter(self._to_owners.rows)
            senders = [ranks[sender] for sender in self._to_owners.senders]
            self._received = Section(owned[rank], rows, received, senders, headed=True)
        buffers = Buffers(sent, received, answer, answers)
        self._of_gathered = codings(gathered, buffers)
        self._of_others = codings(others, buffers)

    def shares(self) -> Iterator[Tuple[str, float]]:
        return shares_of(self.chunks)

    def send(self, job: Job) -> None:
        """Encode the job's values, and send them to their owners."""
        if self._to_owners is None:
            return
        with self.meter.timing("compress_seconds"):
            for section in self._sent:
                section.write(job, self._identity)
            for coding in self._of_others:
                coding.encode(job)
        self.meter.pushed_bytes += self._to_owners.start()

    def answer(self, job: Job) -> None:
        """Encode gathered chunks, sum the chunks that this worker owns, and send both to all."""
        with self.meter.timing("compress_seconds"):
            self._gathered.write(job, self._identity)
            for coding in self._of_gathered:
                coding.encode(job)
        if self._to_owners is not None:
            with self.meter.timing("wait_seconds"):
                self._to_owners.wait()
            self._aggregate(job)
            self._to_owners.expect()
        used = self._to_all.start()
        self.meter.pushed_bytes += sum(used[: self._num_gathered])  # without the answers

    def _aggregate(self, job: Job) -> None:
        """Sum the chunks that this worker owns. Unused chunks do not change their aggregator."""
        outcome, unused = self._received.read()
        header.require_in_step(outcome)
        for coding in self._of_others:
            coding.answer(job)
        for chunk in unused:
            if chunk.aggregator is not None:
                chunk.aggregator.take_back_last()
        self._answer.write_answer(outcome, unused)

    def deliver(self, job: Job) -> None:
        """Wait for the sums, and write them to the job's values."""
        with self.meter.timing("wait_seconds"):
            self.meter.pulled_bytes += self._to_all.wait()
        read = [self._gathered_rows.read(), *(section.read_answer() for section in self._answers)]
        for outcome, _ in read:
            header.require_in_step(outcome)
        with self.meter.timing("decompress_seconds"):
            for coding in (*self._of_gathered, *self._of_others):
                job.nonfinite += coding.deliver(job)
            for outcome, unused in read:
                heed(job, outcome)
                if unused:
                    leave_out(job, unused)
        self._to_all.expect()
        self.meter.steps += 1

    def abandon(self, outcome: Stamp) -> None:
        told = header.broken(outcome)
        if self._to_owners is not None:
            self._to_owners.send_instead(told)
        self._to_all.send_instead(told)


def wire_sizes(chunks: Sequence[ExchangedChunk]) -> List[WireSize]:
    """Return the sizes of a header and of the chunks after it; empty without chunks."""
    return [header.wire_size(len(chunks)), *(c.wire_size for c in chunks)] if chunks else []


def with_headers(sizes: Sequence[List[WireSize]]) -> Tuple[List[List[WireSize]], Set[int]]:
    """Give a header to owners without chunks too. Return all sizes, and these owners."""
    no_owners = {owner for owner, owner_sizes in enumerate(sizes) if not owner_sizes}
    return [owner_sizes or [header.wire_size(0)] for owner_sizes in sizes], no_owners


class Section:
    """Chunks with a common header.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
    rooms : iterator of array
        Yields the memory of the header, then of each chunk. Memory of other sections may follow.
    buffers : dict
        The memory of each chunk is added to it.
    ranks : sequence of int
        The workers whose headers `read` compares.
    headed : bool
        Whether there is a header even without chunks.
    """

    def __init__(
        self,
        chunks: Sequence[ExchangedChunk],
        rooms: Iterator[np.ndarray],
        buffers: Dict[ExchangedChunk, np.ndarray],
        ranks: Sequence[int] = (),
        headed: bool = False,
    ) -> None:
        self.chunks, self._ranks = chunks, ranks
        self._headed = headed or bool(chunks)
        if self._headed:
            self._header = next(rooms)
            buffers.update(zip(chunks, rooms))

    def write(self, job: Job, identity: int) -> None:
        """Write a header that says which chunks have a gradient on this worker.

        `identity` is that of the transfer.
        """
        if self._headed:
            present = [chunk.piece.tensor not in job.absent for chunk in self.chunks]
            header.write(self._header, job.stamp_of(identity), present)

    def read(self) -> Tuple[Stamp, Set[ExchangedChunk]]:
        """Compare all workers' headers. Return the outcome, and the chunks without a gradient."""
        if not self._headed:
            return SAME, set()
        return self._unused(*header.read(self._header, self._ranks))

    def write_answer(self, outcome: Stamp, unused: Set[ExchangedChunk]) -> None:
        """Write the result of `read` as an owner's header."""
        if self.chunks:
            header.write(self._header, outcome, [c not in unused for c in self.chunks])

    def read_answer(self) -> Tuple[Stamp, Set[ExchangedChunk]]:
        """Return the result of `read` from an owner's header."""
        if not self.chunks:
            return SAME, set()
        return self._unused(*header.read_answer(self._header[0]))

    def _unused(self, outcome: Stamp, present: np.ndarray) -> Tuple[Stamp, Set[ExchangedChunk]]:
        if present.all():
            return outcome, set()
        return outcome, {chunk for chunk, here in zip(self.chunks, present) if not here}


def heed(job: Job, outcome: Stamp) -> None:
    """Record an outcome that shows a difference between workers."""
    if outcome != SAME:
        job.outcome = outcome


def leave_out(job: Job, unused: Set[ExchangedChunk]) -> None:
    """Undo the exchange of chunks without a gradient on any worker."""
    with job.staged.queue():
        for chunk in unused:
            job.of(chunk.piece).zero_()
    for chunk in unused:
        job.unused.add(chunk.piece.tensor)
        if chunk.coder is not None:
            chunk.coder.take_back_last()
