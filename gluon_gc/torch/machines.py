"""One exchange a machine: its workers add up what they have before anything travels.

Each worker of a machine has a share of the chunks: it adds up what all on the machine have of them,
exchanges the sums with its peers, who have the same share on other machines, and hands the results
to all on its own machine.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import env
from ..plan import Slice
from . import gpu, groups, header
from .coding import as_tensor, is_finite
from .collectives import ToAll, ToOwners, WireSize
from .exchanged_chunk import ExchangedChunk
from .header import Stamp
from .job import Job
from .stages import Stages
from .staging import Staged
from .stats import Meter, shares_of
from .transfer import Section, Transfer, heed


class Machines:
    """Where the workers are, several on each of several machines.

    Parameters
    ----------
    local_size : int
        Workers of each machine, whose ranks follow each other.

    Attributes
    ----------
    number, count : int
        Of this worker's machine, and of all.
    local_rank, local_size : int
        This worker's place on its machine, and how many there are.
    inside, across : pair of ProcessGroup
        The workers of this machine, and the peers on all of them.
    """

    def __init__(self, local_size: int) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.local_size, self.count = local_size, size // local_size
        self.number, self.local_rank = divmod(rank, local_size)
        first = self.number * local_size
        self.inside = groups.take(range(first, first + local_size))
        self.across = groups.take(range(self.local_rank, size, local_size))

    def close(self) -> None:
        """Give the groups back."""
        groups.give_back(self.inside)
        groups.give_back(self.across)


def find(group: Optional[dist.ProcessGroup]) -> Optional[Machines]:
    """The machines of all workers, as torchrun tells each; None: it makes no difference."""
    local_size = env.of_torchrun("LOCAL_WORLD_SIZE") or 1
    size = dist.get_world_size()
    if group is not None or size == 1:
        return None
    mine = (local_size, env.of_torchrun("LOCAL_RANK") or 0)
    everybody: List[Any] = [None] * size
    dist.all_gather_object(everybody, mine)
    even = all(one == (local_size, rank % local_size) for rank, one in enumerate(everybody))
    whole = size % local_size == 0  # not so if only some of them have resumed
    return Machines(local_size) if even and whole and 1 < local_size < size else None


class _Sums(Job):
    """What a machine has of chunks.

    Parameters
    ----------
    sums : dict of Slice to Tensor
        In the host's memory.
    """

    def __init__(self, sums: Dict[Slice, torch.Tensor]) -> None:
        super().__init__(Staged({}), 1.0, {})
        self._sums = sums
        self._addresses = {piece: tensor.data_ptr() for piece, tensor in sums.items()}

    def begin(self, job: Job, absent: Collection[str], outcome: Stamp) -> None:
        """Go on with a worker's job: no worker of the machine has gradients of `absent`."""
        self.ratios, self.stamp, self.keeps, self.absent = job.ratios, job.stamp, job.keeps, absent
        self.outcome = outcome
        self.nonfinite.clear()  # all on the machine look themselves
        self.unused.clear()

    def of(self, piece: Slice) -> torch.Tensor:
        return self._sums[piece]

    def address(self, piece: Slice) -> int:
        return self._addresses[piece]


class MachineTransfer(Stages[Job]):
    """Chunks that travel together, once a machine.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
        Each with the local rank of the workers who exchange it.
    machines : Machines
    tag : int
        The same on all workers, and of no other transfer.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], machines: Machines, tag: int) -> None:
        shares = [[c for c in chunks if c.local == i] for i in range(machines.local_size)]
        first, second = machines.inside
        ranks = dist.get_process_group_ranks(first)
        sizes = [[WireSize(chunk.values_bytes) for chunk in share] for share in shares]
        headed = [[header.wire_size(len(share)), *share] if share else [] for share in sizes]
        self._in, self._out = ToOwners(first, tag, headed), ToAll(second, tag, [], headed)
        self._mine = shares[machines.local_rank]
        self._rooms, self._received, self._rows, room_of = {}, {}, {}, {}
        rooms, rows = iter(self._in.rooms), iter(self._out.rows)
        self._sent = [Section(share, rooms, self._rooms) for share in shares]
        self._read = Section(self._mine, iter(self._in.rows), self._received, ranks)
        self._answer = Section(self._mine, iter(self._out.rooms), room_of)
        self._answers = [Section(share, rows, self._rows) for share in shares]
        self._sums = _Sums({c.piece: _values(c, room) for c, room in room_of.items()})
        self._between, self.meter = None, Meter()
        if self._mine:
            self._between = Transfer(self._mine, machines.across, tag)
            self.meter = self._between.meter

    def shares(self) -> Iterator[Tuple[str, float]]:
        return shares_of(self._mine)

    def begin(self, job: Job) -> None:
        """Send the job's values to the machine's workers who add them up."""
        for section in self._sent:
            section.write(job)
        with job.staged.queue():
            for chunk, room in self._rooms.items():
                gpu.copy_scaled(job.of(chunk.piece), job.scale, _values(chunk, room))
        self._in.start()

    def send(self, job: Job) -> None:
        """Add up this worker's share, and send it to its owners."""
        self._in.wait()
        outcome, unused = self._read.read()
        for chunk, rows in self._received.items():
            total = self._sums.of(chunk.piece)
            total.copy_(_values(chunk, rows[0]))
            for row in rows[1:]:
                total += _values(chunk, row)
        self._in.expect()
        if self._between is not None:
            self._sums.begin(job, {chunk.piece.tensor for chunk in unused}, outcome)
            self._between.send(self._sums)

    def answer(self, job: Job) -> None:
        """As `Transfer` does."""
        if self._between is not None:
            self._between.answer(self._sums)

    def deliver(self, job: Job) -> None:
        """Hand the share's sums over machines to all on this one."""
        if self._between is not None:
            self._between.deliver(self._sums)
        unused = {chunk for chunk in self._mine if chunk.piece.tensor in self._sums.unused}
        self._answer.write_answer(self._sums.outcome, unused)
        self._out.start()

    def finish(self, job: Job) -> None:
        """Write the sums to the job's values."""
        self._out.wait()
        for section in self._answers:
            outcome, unused = section.read_answer()
            heed(job, outcome)
            job.unused.update(chunk.piece.tensor for chunk in unused)
        with job.staged.queue():
            for chunk, (row,) in self._rows.items():
                values = _values(chunk, row)
                gpu.copy(values, job.of(chunk.piece))
                if chunk.checked and not is_finite(values):
                    job.nonfinite.append(chunk.piece.tensor)
        self._out.expect()


def _values(chunk: ExchangedChunk, room: np.ndarray) -> torch.Tensor:
    return as_tensor(room, getattr(torch, chunk.working))
