"""Allreduce: large uncompressed chunks, which torch.distributed sums in place."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ..plan import Slice
from . import gpu, header
from .coding import is_finite
from .collectives import ToAll
from .exchanged_chunk import PLAIN, ExchangedChunk
from .header import Stamp
from .job import Job
from .stages import Stages
from .stats import Meter, shares_of
from .transfer import Section, heed

LARGE_BYTES = 512 * 1024  # of a chunk; for smaller ones, the latency of a ring would dominate


def sums_in_place(chunk: ExchangedChunk) -> bool:
    """Return whether `Allreduce` sums a chunk. Other chunks share messages with neighbours."""
    plain = chunk.kind == PLAIN and chunk.local is None and chunk.num_bytes >= LARGE_BYTES
    no_cast = chunk.wire == getattr(torch, chunk.working)
    return plain and no_cast and gpu.in_host_memory(chunk.device)


class Allreduce(Stages[Job]):
    """Neighbouring chunks of one tensor, which torch.distributed sums together.

    Different tensors are summed separately: the order of the additions depends on an element's
    place in the summed array, and the result must not depend on the tensors that happen to be
    neighbours.

    The workers exchange headers first: an all-reduce of different tensors would give wrong sums, or
    end the process.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
    group : ProcessGroup
    tag : int
        The same on all workers, and different for each transfer.

    Attributes
    ----------
    meter : Meter
    """

    def __init__(
        self, chunks: Sequence[ExchangedChunk], group: dist.ProcessGroup, tag: int
    ) -> None:
        self.chunks, self.meter = list(chunks), Meter()
        first, last = self.chunks[0].piece, self.chunks[-1].piece
        self._piece = Slice(first.tensor, first.begin, last.end)
        self._identity = header.identity([self._piece])
        self._group = group
        self._work: Optional[dist.Work] = None
        ranks = dist.get_process_group_ranks(group)
        self._headers = ToAll(group, tag, [header.wire_size(1)], [[] for _ in ranks])
        self._own = Section(self.chunks[:1], iter(self._headers.rooms), {})
        self._of_all = Section(self.chunks[:1], iter(self._headers.rows), {}, ranks)
        self._bytes = sum(chunk.num_bytes for chunk in chunks)

    def shares(self) -> Iterator[Tuple[str, float]]:
        return shares_of(self.chunks)

    def send(self, job: Job) -> None:
        """Send the header."""
        self._own.write(job, self._identity)
        self._headers.start()
        if job.scale != 1.0:
            values = job.of(self._piece)
            values *= job.scale

    def answer(self, job: Job) -> None:
        """Start to sum the job's values, unless no worker has a gradient."""
        with self.meter.timing("wait_seconds"):
            self._headers.wait()
        outcome, unused = self._of_all.read()
        self._headers.expect()
        header.require_in_step(outcome)
        heed(job, outcome)
        if unused:
            job.unused.add(self._piece.tensor)
        elif outcome == header.SAME:
            self._work = dist.all_reduce(job.of(self._piece), group=self._group, async_op=True)
            self.meter.pushed_bytes += self._bytes

    def deliver(self, job: Job) -> None:
        """Wait for the sums."""
        self.meter.steps += 1
        if self._work is None:
            return
        with self.meter.timing("wait_seconds"):
            self._work.wait()
        self._work = None  # it holds the values
        if self.chunks[0].checked and not is_finite(job.of(self._piece)):
            job.nonfinite.append(self._piece.tensor)
        self.meter.pulled_bytes += self._bytes

    def abandon(self, outcome: Stamp) -> None:
        self._headers.send_instead(header.broken(outcome))
