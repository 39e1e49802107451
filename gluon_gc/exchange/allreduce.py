"""Allreduce: large uncompressed chunks, which the engine sums in place."""

from __future__ import annotations

from typing import Sequence

from . import header
from .arrays import Arrays
from .chunk import PLAIN, ExchangedChunk
from .job import Task
from .plan import Slice
from .statistics import Meter
from .transfer import HeadedChunks, Link, Stages
from .transport import peer_errors

LARGE_BYTES = 512 * 1024  # of a chunk; for smaller ones, the latency of a ring would dominate


def sums_in_place(chunk: ExchangedChunk, arrays: Arrays) -> bool:
    """Return whether `Allreduce` sums a chunk. Other chunks share messages with neighbours."""
    plain = chunk.kind == PLAIN and chunk.inside is None and chunk.num_bytes >= LARGE_BYTES
    return plain and chunk.wire == chunk.working and arrays.in_host_memory(chunk.device)


class Allreduce(Stages):
    """Neighbouring chunks of one tensor, which the engine sums together.

    Different tensors are summed separately: the order of the additions depends on an element's
    offset in the summed array, and the result must not depend on the tensors that happen to be
    neighbours.

    The workers exchange headers first: an all-reduce of different tensors would give wrong sums, or
    end the process.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], link: Link) -> None:
        self.chunks, self.meter = list(chunks), Meter()
        self._members, self._arrays = link.members, link.arrays
        first, last = self.chunks[0].piece, self.chunks[-1].piece
        self._piece = Slice(first.tensor, first.begin, last.end)
        self._identity = header.identity([self._piece])
        ranks = link.members.ranks
        sizes = [header.wire_size(1)]
        self._headers = link.collectives.to_all(link.members, link.tag, sizes, [[] for _ in ranks])
        self.collectives = [self._headers]
        self._own = HeadedChunks(self.chunks[:1], iter(self._headers.rooms), {})
        self._of_all = HeadedChunks(self.chunks[:1], iter(self._headers.rows), {}, ranks)
        self._bytes = sum(chunk.num_bytes for chunk in chunks)

    def send(self, task: Task) -> None:
        """Send the header."""
        self._own.write(task.job, task.job.stamp_of(self._identity))
        self._headers.start()
        request, scale = task.job.request, task.job.scale
        values = request.values.of(self._piece)
        if request.output is not None:
            self._arrays.copy(values, request.output.of(self._piece), scale)
        elif scale != 1.0:
            self._arrays.multiply(values, scale)

    def answer(self, task: Task) -> None:
        """Start to sum the values, unless no worker has a gradient."""
        with self.meter.timing("wait_seconds"):
            self._headers.wait()
        found = self._of_all.read()
        self._headers.expect()
        task.note(found.outcome)
        if found.unused:
            task.unused.add(self._piece.tensor)
        elif found.outcome == header.SAME:
            with peer_errors():
                task.under_way = self._members.all_reduce(task.job.request.sums.of(self._piece))
            self.meter.pushed_bytes += self._bytes

    def deliver(self, task: Task) -> None:
        """Wait for the sums."""
        self.meter.steps += 1
        if task.under_way is None:
            return
        with self.meter.timing("wait_seconds"), peer_errors():
            task.under_way.wait()
        values = task.job.request.sums.of(self._piece)
        if self.chunks[0].checked and not self._arrays.check_finite(values)():
            task.nonfinite.append([self._piece.tensor])
        self.meter.pulled_bytes += self._bytes
