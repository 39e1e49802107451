"""Allreduce: large uncompressed chunks, which torch.distributed sums in place."""

from __future__ import annotations

from typing import Iterator, Sequence, Tuple

import torch
import torch.distributed as dist

from ..plan import Slice
from . import gpu
from .coding import is_finite
from .exchanged_chunk import PLAIN, ExchangedChunk
from .job import Job
from .stages import Stages
from .stats import Meter, shares_of

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

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
    group : ProcessGroup

    Attributes
    ----------
    meter : Meter
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], group: dist.ProcessGroup) -> None:
        self.chunks, self.meter = list(chunks), Meter()
        first, last = self.chunks[0].piece, self.chunks[-1].piece
        self._piece = Slice(first.tensor, first.begin, last.end)
        self._group, self._work = group, []
        self._users = torch.zeros(1)  # the number of workers that have a gradient
        self._bytes = sum(chunk.num_bytes for chunk in chunks)

    def shares(self) -> Iterator[Tuple[str, float]]:
        return shares_of(self.chunks)

    def send(self, job: Job) -> None:
        """Start to sum the job's values."""
        values = job.of(self._piece)
        if job.scale != 1.0:
            values *= job.scale
        self._users.fill_(self._piece.tensor not in job.absent)
        self._work = [
            dist.all_reduce(tensor, group=self._group, async_op=True)
            for tensor in (values, self._users)
        ]
        self.meter.pushed_bytes += self._bytes

    def deliver(self, job: Job) -> None:
        """Wait for the sums."""
        with self.meter.timing("wait_seconds"):
            for work in self._work:
                work.wait()
        self._work = []  # it holds the values
        if not self._users:
            job.unused.add(self._piece.tensor)
        if self.chunks[0].checked and not is_finite(job.of(self._piece)):
            job.nonfinite.append(self._piece.tensor)
        self.meter.pulled_bytes += self._bytes
        self.meter.steps += 1
