"""Sparse gradients, such as those of torch.nn.Embedding(sparse=True), which are sent uncompressed.

Each worker receives the rows of all workers, and adds them up in the order of the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Sequence

import numpy as np
import torch

from ...exchange import header
from ...exchange.collectives import WireSize
from ...exchange.exchange import Exchange
from ...exchange.header import SAME, Stamp
from ...exchange.job import Done, Task
from ...exchange.plan import Slice
from ...exchange.statistics import Meter
from ...exchange.transfer import Link, Stages
from . import gpu
from .staging import working_dtype

_COUNTS = WireSize(2 * torch.int64.itemsize)  # the numbers of rows and of sparse dimensions


@dataclass(frozen=True)
class SparseRequest:
    """A sparse tensor (COO) whose average or sum over workers `deliver` will be called with.

    The result is coalesced, on the device of the values. See `Request` for the other fields.
    """

    name: str
    values: torch.Tensor
    deliver: Callable[[torch.Tensor], None]
    is_absent: bool = False  # whether this worker has no gradient; values are empty then
    average: bool = True
    stamp: Callable[[], Stamp] = lambda: SAME
    ready: Any = None  # the `gpu.mark` of the values
    divisor = 1.0
    announced = None

    @property
    def names(self) -> list[str]:
        return [self.name]


class SparseSum(Stages):
    """Averages or sums the values of `SparseRequest`s."""

    def __init__(self, name: str, link: Link) -> None:
        self._name, self._link, self.meter = name, link, Meter()
        self._ranks = link.members.ranks
        self._identity = header.identity([Slice(name, 0, 0)])
        self._heads = link.collectives.to_all(
            link.members, link.tag, [header.wire_size(1), _COUNTS], [[] for _ in self._ranks]
        )
        self.collectives = [self._heads]

    def shares(self) -> list[tuple[str, float]]:
        return [(self._name, 1.0)]

    def send(self, task: Task) -> None:
        """Send the number of rows, the number of sparse dimensions, and the stamp."""
        request = task.job.request
        values = request.values.detach()
        with gpu.queue(values.device, request.ready):
            own = values.cpu()  # the host waits for it
        own = own.coalesce()
        task.under_way = own.indices().T, own.values().to(working_dtype(own.dtype))
        own_header, own_counts = self._heads.rooms
        header.write(own_header, task.job.stamp_of(self._identity), not request.is_absent)
        dimensions = 0 if request.is_absent else own.sparse_dim()
        own_counts.view(np.int64)[:] = own.values().shape[0], dimensions
        self._heads.start()

    def answer(self, task: Task) -> None:
        """Send indices and values."""
        request, (own_indices, own_values) = task.job.request, task.under_way
        self._heads.wait()
        headers, all_counts = self._heads.rows
        outcome, unused, _ = header.read(headers, self._ranks)
        counts, dimensions = all_counts.copy().view(np.int64).T.tolist()
        self._heads.expect()
        task.note(outcome)
        if unused:
            task.unused.add(request.name)
        if request.is_absent:
            own_values = own_values.new_empty(0, *request.values.shape[max(dimensions) :])
            own_indices = torch.empty(0, max(dimensions), dtype=torch.int64, device="cpu")
        rows = _Rows(counts, max(dimensions), own_values)
        rows.of_worker[self._link.members.rank] = own = rows.packed(own_indices, own_values)
        others = {w: room for w, room in enumerate(rows.of_worker) if w != self._link.members.rank}
        task.under_way = rows, self._link.members.messages(0, self._link.tag, others)
        task.under_way[1].send(dict.fromkeys(others, own))
        self.meter.pushed_bytes += own.nbytes

    def deliver(self, task: Task) -> None:
        """Add up the rows of all workers."""
        request, (rows, messages) = task.job.request, task.under_way
        with self.meter.timing("wait_seconds"):
            messages.wait()
        self.meter.pulled_bytes += sum(room.nbytes for room in rows.of_worker)
        indices, values = rows.joined()
        if request.average:
            values = values / len(self._ranks)
        total = torch.sparse_coo_tensor(
            indices.T, values, request.values.shape, device="cpu", check_invariants=False
        )
        total = total.coalesce().to(request.values.dtype)
        if not total.values().isfinite().all():
            task.nonfinite.append([request.name])
        request.deliver(total.to(request.values.device))
        self.meter.steps += 1


class _Rows:
    """The indices and values of all workers, as bytes: first all indices of a worker."""

    def __init__(self, counts: Sequence[int], dimensions: int, like: torch.Tensor) -> None:
        self._counts, self._dimensions, self._like = counts, dimensions, like
        row_bytes = like[:0].new_empty(1, *like.shape[1:]).nbytes
        self._index_bytes = dimensions * torch.int64.itemsize
        sizes = [n * (self._index_bytes + row_bytes) for n in counts]
        self.of_worker = [np.empty(size, np.uint8) for size in sizes]

    def packed(self, indices: torch.Tensor, values: torch.Tensor) -> np.ndarray:
        parts = (tensor.numpy().tobytes() for tensor in (indices, values))
        return np.frombuffer(bytearray().join(parts), np.uint8)

    def joined(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the indices and the values of all workers, in the order of their ranks."""
        indices = [torch.empty(0, self._dimensions, dtype=torch.int64, device="cpu")]
        values = [self._like.new_empty(0, *self._like.shape[1:])]
        for count, room in zip(self._counts, map(torch.from_numpy, self.of_worker)):
            if not count:
                continue
            end = count * self._index_bytes
            indices.append(room[:end].view(torch.int64).view(count, self._dimensions))
            values.append(room[end:].view(self._like.dtype).view(count, *self._like.shape[1:]))
        return torch.cat(indices), torch.cat(values)


def start_sparse(exchange: Exchange, request: SparseRequest, done: Done) -> None:
    """Start to average a sparse tensor. See `Exchange.start`."""
    transfers, name = exchange.transfers, request.name

    def make() -> list[SparseSum]:
        return [SparseSum(name, transfers.link(header.identity([Slice(name, 0, 0)])))]

    exchange.start(request, transfers.of(("sparse", name), make), done)
