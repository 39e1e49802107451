"""Two levels: the workers of a machine sum their values before anything leaves it.

A machine is a group of workers with a fast network between them. The launcher names the machines,
or the caller states the groups, such as sites of several machines. Each worker of a machine has a
share of the chunks. For its share, it

- sums the values of all workers on its machine,
- exchanges the sum with its peers, which are the workers with the same share on other machines,
- and sends what it has received from them to all workers on its machine, which decode it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ContextManager, NamedTuple, Sequence

from . import header
from .arrays import Array, Arrays
from .chunk import ExchangedChunk
from .coding import PLAIN, Buffers, chunks_of, codings, encoding
from .header import Stamp
from .job import Job, Task
from .plan import Slice
from .statistics import Meter
from .transfer import Found, HeadedChunks, Link, Stages, Transfer, wire_sizes, with_headers
from .transport import Members

Groups = Sequence[Sequence[int]]
"""The workers of each machine, by their ranks in the exchange. All machines have equally many."""


@dataclass(frozen=True)
class Machines:
    """The machines of an exchange, and this worker's connections on both levels."""

    groups: Groups
    number: int  # of this worker's machine
    local_rank: int
    inside: Members  # the workers of this machine
    across: Members  # this worker's peers on all machines

    @property
    def count(self) -> int:
        """The number of machines."""
        return len(self.groups)

    @property
    def local_size(self) -> int:
        """The number of workers on each machine."""
        return len(self.groups[0])

    def close(self) -> None:
        """Release the connections."""
        self.inside.close()
        self.across.close()


class Stated(NamedTuple):
    """What a worker states about its machine."""

    local_size: int  # the launcher's number of workers on the machine
    local_rank: int
    inner_group: Sequence[int] | None
    """The ranks, among all workers of the job, of the group that the caller gave. Empty: the worker
    is not in it. None: the caller gave none."""


def groups_of(ranks: Sequence[int], stated: Sequence[Stated]) -> Groups | None:
    """Return the machines of an exchange, or None if no machine sums first.

    There is nothing to sum, or nothing to exchange afterwards, with one worker on each machine or
    with a single machine. Machines that the launcher names do not sum either if they have different
    numbers of workers.

    Parameters
    ----------
    ranks : sequence of int
        The ranks of the exchange's workers among all workers of the job.
    stated : sequence of Stated
        The statement of each of them.

    Raises
    ------
    ValueError
        The inner groups that the callers gave do not divide the workers evenly.
    """
    if any(each.inner_group is not None for each in stated):
        groups = _checked(ranks, [each.inner_group for each in stated])
    else:
        groups = _of_launcher(ranks, stated)
    return groups if groups is not None and 1 < len(groups) < len(ranks) else None


def _of_launcher(ranks: Sequence[int], stated: Sequence[Stated]) -> Groups | None:
    """Return the machines that the launcher names, whose workers have consecutive ranks."""
    size = stated[0].local_size
    if any(each[:2] != (size, rank % size) for rank, each in zip(ranks, stated)):
        return None
    machines: dict[int, list[int]] = {}
    for number, rank in enumerate(ranks):
        machines.setdefault(rank // size, []).append(number)
    groups = list(machines.values())
    return groups if len({len(group) for group in groups}) == 1 else None


def _checked(ranks: Sequence[int], inner_groups: Sequence[Sequence[int] | None]) -> Groups:
    """Return the groups that the callers gave. ValueError if they do not fit together."""
    numbers = {rank: number for number, rank in enumerate(ranks)}
    groups: dict[int, list[int]] = {}  # by the first member
    for rank, inner_group in zip(ranks, inner_groups):
        if inner_group is None:
            raise ValueError(f"worker {rank} has no inner_group, but other workers have one")
        if rank not in inner_group:
            raise ValueError(f"worker {rank} is not in its own inner_group")
    for rank, inner_group in zip(ranks, inner_groups):
        for member in inner_group:
            if member not in numbers:
                raise ValueError(
                    f"the inner_group of worker {rank} has worker {member}, which is not in "
                    "process_group"
                )
            theirs = inner_groups[numbers[member]]
            if set(theirs) != set(inner_group):
                raise ValueError(
                    f"the inner_group of worker {rank} is {sorted(inner_group)}, but that of "
                    f"worker {member}, which is in it, is {sorted(theirs)}"
                )
        members = sorted(numbers[member] for member in inner_group)
        groups.setdefault(members[0], members)
    first, *others = groups.values()
    for group in others:
        if len(group) != len(first):
            raise ValueError(
                f"the inner_group of worker {ranks[group[0]]} has {len(group)} workers, but that "
                f"of worker {ranks[first[0]]} has {len(first)}: all must have equally many"
            )
    return [first, *others]


class _Sums:
    """The sums of a machine, as `arrays.Values`."""

    def __init__(self, rooms: dict[ExchangedChunk, Any], device: Any, arrays: Arrays) -> None:
        self.device, self._order = device, arrays.order(device, rooms.values())
        self._sums = {c.piece: arrays.view(room, c.working) for c, room in rooms.items()}
        self._addresses = {piece: arrays.address(values) for piece, values in self._sums.items()}
        dtypes = {chunk.piece.tensor: chunk.working for chunk in rooms}
        self.names, self.dtypes = dtypes.keys(), tuple(dtypes.values())

    def of(self, piece: Slice) -> Array:
        return self._sums[piece]

    def addresses(self, pieces: Sequence[Slice]) -> list[int]:
        return [self._addresses[piece] for piece in pieces]

    def queue(self) -> ContextManager[int | None]:
        return self._order.queue()


class MachineTransfer(Stages):
    """A transfer of sums over machines.

    Each chunk is `inside` machines, too. `inside` and `across` are the links to the workers of this
    machine, and to this worker's peers.
    """

    def __init__(
        self, chunks: Sequence[ExchangedChunk], machines: Machines, inside: Link, across: Link
    ) -> None:
        arrays, local_rank = across.arrays, machines.local_rank
        self._arrays, to_owners, to_all = arrays, *inside.collectives
        shares = [[c for c in chunks if c.inside.local == i] for i in range(machines.local_size)]
        self.chunks = mine = shares[local_rank]
        sent = [[chunk.inside.to_owner for chunk in share] for share in shares]
        answered = [[chunk.inside.to_all for chunk in share] for share in shares]
        self._identity = header.identity(chunk.piece for chunk in chunks)
        members, tag = inside.members, inside.tag
        headed, no_owners = with_headers([wire_sizes(share) for share in sent])
        self._in = to_owners(members, tag, headed, no_owners=no_owners)
        self._out = to_all(members, tag, [], [wire_sizes(share) for share in answered])
        self.collectives = self._in, self._out
        rooms_of, rows_of, answer_of, answers_of = {}, {}, {}, {}
        rooms, rows = iter(self._in.rooms), iter(self._in.rows)
        senders = [members.ranks[sender] for sender in self._in.senders]
        self._sent = [HeadedChunks(share, rooms, rooms_of, headed=True) for share in sent]
        self._read = HeadedChunks(sent[local_rank], rows, rows_of, senders, headed=True)
        rooms, rows = iter(self._out.rooms), iter(self._out.rows)
        self._answer = HeadedChunks(answered[local_rank], rooms, answer_of)
        self._answers = [HeadedChunks(share, rows, answers_of) for share in answered]

        # Sums that this worker decodes itself are in the rooms of the way back.
        device = chunks[0].device
        on_gpu = chunks[0].inside.to_owner.on_gpu
        forward = {c: answer_of[c.inside.to_all] for c in mine if c.inside.forwards}
        sums_of = {
            c: arrays.memory(c.plan.size * arrays.itemsize(c.working), device if on_gpu else None)
            if c in forward
            else answer_of[c.inside.to_all]
            for c in mine
        }
        self._sums = _Sums(sums_of, device, arrays)
        added = {c.inside.to_owner: room for c, room in sums_of.items()}
        decoded = {c: rows for c, rows in rows_of.items() if c.kind != PLAIN}
        in_order = [sent[local] for local in self._in.order]
        self._adding = codings(in_order, Buffers(rooms_of, rows_of, added, decoded), arrays)
        self._delivered = [chunk for share in answered for chunk in share]
        answers = {c: rows.reshape(c.senders, -1) for c, rows in answers_of.items()}
        self._delivering = codings([self._delivered], Buffers({}, {}, {}, answers), arrays)
        self._between, self.meter = None, Meter()
        if mine:
            self._between = Transfer(mine, across, forward)
            self.meter = self._between.meter
        self._coders = [(c.piece.tensor, c.coder) for c in chunks_of(sent) if c.coder is not None]

    def begin(self, task: Task) -> None:
        """Send the job's values to the workers of this machine that sum them."""
        stamp = task.job.stamp_of(self._identity)
        for headed in self._sent:
            headed.write(task.job, stamp)
        self._in.start(encoding(self._adding, task.job))

    def send(self, task: Task) -> None:
        """Sum the values of this worker's share, and send the sums to their owners."""
        self._in.wait()
        found = self._read.read()
        task.note(found.outcome)
        to_sums = replace(task.job, request=replace(task.job.request, output=self._sums))
        for coding in self._adding:
            coding.answer(to_sums)
            coding.deliver(to_sums)
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
        """Wait for the owners' answers, and send them to the workers of this machine."""
        if self._between is not None:
            between = task.under_way
            between.note(task.outcome)
            self._between.deliver(between)
            own = (chunk.inside.to_all for chunk in self.chunks)
            unused = {chunk for chunk in own if chunk.piece.tensor in between.unused}
            self._answer.write_answer(Found(between.outcome, unused, between.contributors))
        self._out.start()

    def finish(self, task: Task) -> None:
        """Write the sums to the job's values."""
        self._out.wait()
        for headed in self._answers:
            found = headed.read_answer()
            task.note(found.outcome)
            task.unused.update(chunk.piece.tensor for chunk in found.unused)
        with self.meter.timing("decompress_seconds"):
            for coding in self._delivering:
                task.nonfinite.append(coding.deliver(task.job))
            if task.unused:
                self._leave_out(task)
        self._out.expect()

    def _leave_out(self, task: Task) -> None:
        """Undo the exchange of chunks without a gradient on any worker."""
        sums = task.job.request.sums
        with sums.queue():
            for chunk in self._delivered:
                if chunk.piece.tensor in task.unused:
                    self._arrays.zero(sums.of(chunk.piece))
        for tensor, coder in self._coders:
            if tensor in task.unused:
                coder.take_back_last()

    def abandon(self, outcome: Stamp) -> None:
        super().abandon(outcome)
        if self._between is not None:
            self._between.abandon(outcome)
