"""Hierarchical exchange: the workers of a machine sum their values before anything leaves it.

Each worker of a machine has a share of the chunks. For its share, it

- sums the values of all workers on its machine,
- exchanges the sum with its peers, which are the workers with the same share on other machines,
- and sends the result to all workers on its machine.
"""

from __future__ import annotations

from typing import Collection, Dict, Iterator, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import env
from ..plan import Slice
from . import gpu, groups, header
from .coding import as_tensor, is_finite
from .collectives import ToAll, ToOwners, WireSize
from .exchanged_chunk import ExchangedChunk
from .gathering import gather
from .header import Stamp
from .job import Job
from .stages import Stages
from .staging import Staged
from .stats import Meter, shares_of
from .transfer import Section, Transfer, heed, with_headers


class Machines:
    """The layout of the workers: several machines with several workers each.

    Parameters
    ----------
    local_size : int
        The number of workers on each machine. Their ranks are consecutive.

    Attributes
    ----------
    number, count : int
        The number of this worker's machine, and the number of machines.
    local_rank, local_size : int
        This worker's rank on its machine, and the number of workers on a machine.
    inside, across : pair of ProcessGroup
        The workers of this machine, and this worker's peers on all machines.
    """

    def __init__(self, local_size: int) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.local_size, self.count = local_size, size // local_size
        self.number, self.local_rank = divmod(rank, local_size)
        first = self.number * local_size
        self.inside = groups.take(range(first, first + local_size))
        self.across = groups.take(range(self.local_rank, size, local_size))

    def close(self) -> None:
        """Release the process groups."""
        groups.give_back(self.inside)
        groups.give_back(self.across)


def find(group: Optional[dist.ProcessGroup]) -> Optional[Machines]:
    """Return the machines of the job as the launcher describes them.

    The result is None if machines do not sum first: with one worker a machine, a single machine,
    unequal machines, or a process group of the user.
    """
    local_size = env.of_torchrun("LOCAL_WORLD_SIZE") or 1
    size = dist.get_world_size()
    if group is not None or size == 1:
        return None
    mine = (local_size, env.of_torchrun("LOCAL_RANK") or 0)
    places = gather(mine, "set up their compression")
    even = all(place == (local_size, rank % local_size) for rank, place in enumerate(places))
    whole = size % local_size == 0  # false if only some workers have resumed
    return Machines(local_size) if even and whole and 1 < local_size < size else None


class _Sums(Job):
    """The sums of a machine, as the job that its worker exchanges with its peers.

    Parameters
    ----------
    sums : dict of Slice to Tensor
        In host memory.
    """

    def __init__(self, sums: Dict[Slice, torch.Tensor]) -> None:
        super().__init__(Staged({}), 1.0, {})
        self._sums = sums
        self._addresses = {piece: tensor.data_ptr() for piece, tensor in sums.items()}

    def begin(self, job: Job, absent: Collection[str], outcome: Stamp) -> None:
        """Take over the settings of a worker's job.

        No worker of the machine has a gradient of the tensors in `absent`.
        """
        self.ratios, self.stamp, self.continues = job.ratios, job.stamp, job.continues
        self.number, self.absent, self.outcome = job.number, absent, outcome
        self.nonfinite.clear()  # each worker of the machine checks the result itself
        self.unused.clear()

    def of(self, piece: Slice) -> torch.Tensor:
        return self._sums[piece]

    def address(self, piece: Slice) -> int:
        return self._addresses[piece]


class MachineTransfer(Stages[Job]):
    """A transfer whose values are summed on each machine first.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
        Each has the local rank of the workers that exchange it.
    machines : Machines
    tag : int
        The same on all workers, and different for each transfer.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], machines: Machines, tag: int) -> None:
        shares = [[c for c in chunks if c.local == i] for i in range(machines.local_size)]
        first, second = machines.inside
        ranks = dist.get_process_group_ranks(first)
        sizes = [[WireSize(chunk.values_bytes) for chunk in share] for share in shares]
        headed = [[header.wire_size(len(share)), *share] if share else [] for share in sizes]
        self._in = ToOwners(first, tag, *with_headers(headed))
        self._out = ToAll(second, tag, [], headed)
        self._identity = header.identity(chunk.piece for chunk in chunks)
        self._mine = shares[machines.local_rank]
        self._rooms, self._received, self._rows, room_of = {}, {}, {}, {}
        rooms, rows = iter(self._in.rooms), iter(self._out.rows)
        self._sent = [Section(share, rooms, self._rooms, headed=True) for share in shares]
        received, senders = iter(self._in.rows), [ranks[sender] for sender in self._in.senders]
        self._read = Section(self._mine, received, self._received, senders, headed=True)
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
        """Send the job's values to the workers of this machine that sum them."""
        for section in self._sent:
            section.write(job, self._identity)
        with job.staged.queue():
            for chunk, room in self._rooms.items():
                gpu.copy_scaled(job.of(chunk.piece), job.scale, _values(chunk, room))
        self._in.start()

    def send(self, job: Job) -> None:
        """Sum the values of this worker's share, and send the sums to their owners."""
        self._in.wait()
        outcome, unused = self._read.read()
        header.require_in_step(outcome)
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
        """See `Transfer.answer`."""
        if self._between is not None:
            self._between.answer(self._sums)

    def deliver(self, job: Job) -> None:
        """Wait for the sums over all machines, and send them to the workers of this machine."""
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
            header.require_in_step(outcome)
            heed(job, outcome)
            job.unused.update(chunk.piece.tensor for chunk in unused)
        with job.staged.queue():
            for chunk, (row,) in self._rows.items():
                values = _values(chunk, row)
                gpu.copy(values, job.of(chunk.piece))
                if chunk.checked and not is_finite(values):
                    job.nonfinite.append(chunk.piece.tensor)
        self._out.expect()

    def abandon(self, outcome: Stamp) -> None:
        told = header.broken(outcome)
        self._in.send_instead(told)
        self._out.send_instead(told)
        if self._between is not None:
            self._between.abandon(outcome)


def _values(chunk: ExchangedChunk, room: np.ndarray) -> torch.Tensor:
    return as_tensor(room, getattr(torch, chunk.working))
