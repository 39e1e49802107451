"""Hierarchical exchange: the workers of a machine sum their values before anything leaves it.

Each worker of a machine has a share of the chunks. For its share, it

- sums the values of all workers on its machine,
- exchanges the sum with its peers, which are the workers with the same share on other machines,
- and sends the result to all workers on its machine.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ContextManager, Dict, Iterator, Sequence, Tuple

import numpy as np

from . import header
from .arrays import Array, Arrays
from .chunk import ExchangedChunk
from .collectives import WireSize
from .header import Stamp
from .job import Job, Task
from .plan import Slice
from .statistics import Meter, shares_of
from .transfer import Found, HeadedChunks, Link, Stages, Transfer, with_headers
from .transport import Members


@dataclass(frozen=True)
class Machines:
    """The layout of the workers: several machines with equally many workers each.

    The ranks of a machine's workers are consecutive.
    """

    number: int  # of this worker's machine
    count: int
    local_rank: int
    local_size: int
    inside: Members  # the workers of this machine
    across: Members  # this worker's peers on all machines

    def close(self) -> None:
        """Release the connections."""
        self.inside.close()
        self.across.close()


class _Sums:
    """The sums of a machine, as `arrays.Values` in host memory."""

    def __init__(self, rooms: Dict[ExchangedChunk, np.ndarray], arrays: Arrays) -> None:
        self.device = arrays.host
        self._sums = {c.piece: arrays.view(room, c.working) for c, room in rooms.items()}
        self._addresses = {c.piece: room.ctypes.data for c, room in rooms.items()}
        self.names = {piece.tensor for piece in self._sums}

    def of(self, piece: Slice) -> Array:
        return self._sums[piece]

    def address(self, piece: Slice) -> int:
        return self._addresses[piece]

    def queue(self) -> ContextManager[None]:
        return nullcontext()


class MachineTransfer(Stages):
    """A transfer whose values are summed on each machine first.

    Each chunk has the local rank of the workers that exchange it.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], machines: Machines, link: Link) -> None:
        self._arrays, inside = link.arrays, machines.inside
        shares = [[c for c in chunks if c.local == i] for i in range(machines.local_size)]
        sizes = [[WireSize(chunk.values_bytes) for chunk in share] for share in shares]
        headed = [[header.wire_size(len(share)), *share] if share else [] for share in sizes]
        sizes, no_owners = with_headers(headed)
        self._in = link.collectives.to_owners(inside, link.tag, sizes, no_owners=no_owners)
        self._out = link.collectives.to_all(inside, link.tag, [], headed)
        self._identity = header.identity(chunk.piece for chunk in chunks)
        self._mine = shares[machines.local_rank]
        rooms_of, rows_of, results_of, sums_of = {}, {}, {}, {}
        rooms, rows = iter(self._in.rooms), iter(self._out.rows)
        self._sent = [HeadedChunks(share, rooms, rooms_of, headed=True) for share in shares]
        received = iter(self._in.rows)
        senders = [inside.ranks[sender] for sender in self._in.senders]
        self._read = HeadedChunks(self._mine, received, rows_of, senders, headed=True)
        self._answer = HeadedChunks(self._mine, iter(self._out.rooms), sums_of)
        self._answers = [HeadedChunks(share, rows, results_of) for share in shares]
        view = self._arrays.view
        self._values = [(c, view(room, c.working)) for c, room in rooms_of.items()]
        self._summands = [(c, view(rows, c.working)) for c, rows in rows_of.items()]
        self._results = [(c, view(row[0], c.working)) for c, row in results_of.items()]
        self._sums = _Sums(sums_of, self._arrays)
        self._between, self.meter = None, Meter()
        if self._mine:
            self._between = Transfer(self._mine, link._replace(members=machines.across))
            self.meter = self._between.meter

    def shares(self) -> Iterator[Tuple[str, float]]:
        return shares_of(self._mine)

    def begin(self, task: Task) -> None:
        """Send the job's values to the workers of this machine that sum them."""
        for headed in self._sent:
            headed.write(task.job, self._identity)
        values = task.job.request.values
        with values.queue():
            for chunk, target in self._values:
                self._arrays.copy(values.of(chunk.piece), target, task.job.scale)
        self._in.start()

    def send(self, task: Task) -> None:
        """Sum the values of this worker's share, and send the sums to their owners."""
        self._in.wait()
        found = self._read.read()
        header.require_in_step(found.outcome)
        task.note(found.outcome)
        for chunk, rows in self._summands:
            self._arrays.sum_rows(rows, self._sums.of(chunk.piece))
        self._in.expect()
        if self._between is not None:
            task.under_way = Task(self._between, self._job_between(task.job, found))
            self._between.send(task.under_way)

    def _job_between(self, job: Job, found: Found) -> Job:
        """Return the job of this machine's sums, given what its workers' headers say."""
        absent = {chunk.piece.tensor for chunk in found.unused}
        request = replace(job.request, values=self._sums, output=None, absent=absent)
        return Job(request, job.number, 1.0, found.contributors)

    def answer(self, task: Task) -> None:
        """See `Transfer.answer`."""
        if self._between is not None:
            self._between.answer(task.under_way)

    def deliver(self, task: Task) -> None:
        """Wait for the sums over all machines, and send them to the workers of this machine."""
        if self._between is not None:
            between = task.under_way
            between.note(task.outcome)
            self._between.deliver(between)
            unused = {chunk for chunk in self._mine if chunk.piece.tensor in between.unused}
            self._answer.write_answer(Found(between.outcome, unused, between.contributors))
        self._out.start()

    def finish(self, task: Task) -> None:
        """Write the sums to the job's values."""
        self._out.wait()
        for headed in self._answers:
            found = headed.read_answer()
            header.require_in_step(found.outcome)
            task.note(found.outcome)
            task.unused.update(chunk.piece.tensor for chunk in found.unused)
        sums = task.job.request.sums
        with sums.queue():
            for chunk, values in self._results:
                self._arrays.copy(values, sums.of(chunk.piece))
                if chunk.checked and not self._arrays.is_finite(values):
                    task.nonfinite.append(chunk.piece.tensor)
        self._out.expect()

    def abandon(self, outcome: Stamp) -> None:
        told = header.broken(outcome)
        self._in.send_instead(told)
        self._out.send_instead(told)
        if self._between is not None:
            self._between.abandon(outcome)
