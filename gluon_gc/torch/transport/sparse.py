"""Sparse gradients, such as those of torch.nn.Embedding(sparse=True), which are sent uncompressed.

Each worker receives the rows of all workers, and adds them up in the order of the ranks.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist

from ..plan import Slice
from . import header
from .collectives import ToAll, WireSize
from .groups import Pair
from .header import Stamp
from .job import Job
from .stages import Stages
from .staging import Staged, as_real, working_dtype
from .stats import Meter
from .transfer import heed

_COUNTS = WireSize(2 * torch.int64.itemsize)  # the numbers of rows and of sparse dimensions


class SparseJob(Job):
    """A sparse tensor. `result` is its average or sum over workers.

    Parameters
    ----------
    name : str
    values : Tensor
        Sparse (COO).
    absent : bool
        Whether this worker has no gradient. In that case, values are empty.
    stamp : Stamp
    done : callable
        See `Job`.
    average : bool

    Attributes
    ----------
    result : Tensor
        Coalesced, on the device of the values.
    """

    def __init__(
        self,
        name: str,
        values: torch.Tensor,
        absent: bool,
        stamp: Stamp,
        done: Callable[[Job, Optional[BaseException]], None],
        average: bool = True,
    ) -> None:
        super().__init__(Staged({}), 1.0, {}, done, [name] if absent else [], stamp)
        self.name, self.values, self.result = name, values, values
        self.average = average


class SparseSum(Stages[SparseJob]):
    """Averages or sums the values of `SparseJob`s.

    Parameters
    ----------
    name : str
        The name of the tensor.
    groups : pair of ProcessGroup
        The first group gathers the numbers of rows, the second one the rows.
    tag : int
        The same on all workers, and different for each transfer.

    Attributes
    ----------
    meter : Meter
    """

    def __init__(self, name: str, groups: Pair, tag: int) -> None:
        self._name, self._groups, self.meter = name, groups, Meter()
        self._ranks = dist.get_process_group_ranks(groups[0])
        self._workers = len(self._ranks)
        self._identity = header.identity([Slice(name, 0, 0)])
        sizes = [header.wire_size(1), _COUNTS]
        self._heads = ToAll(groups[0], tag, sizes, [[] for _ in self._ranks])

    def shares(self) -> List[Tuple[str, float]]:
        return [(self._name, 1.0)]

    def send(self, job: SparseJob) -> None:
        """Send the number of rows, the number of sparse dimensions, and the stamp."""
        own = job.values.detach().cpu().coalesce()
        self._rows = own.indices().T, own.values().to(working_dtype(own.dtype))
        own_header, own_counts = self._heads.rooms
        header.write(own_header, job.stamp_of(self._identity), [not job.absent])
        dimensions = 0 if job.absent else own.sparse_dim()
        own_counts.view(np.int64)[:] = own.values().shape[0], dimensions
        self._heads.start()

    def answer(self, job: SparseJob) -> None:
        """Send indices and values, padded to the largest number of rows."""
        self._heads.wait()
        headers, counts = self._heads.rows
        outcome, present = header.read(headers, self._ranks)
        self._counts, dimensions = counts.copy().view(np.int64).T.tolist()
        self._heads.expect()
        header.require_in_step(outcome)
        heed(job, outcome)
        if not present.any():
            job.unused.add(job.name)
        indices = max(dimensions)
        if job.absent:
            empty = self._rows[1].new_empty(0, *job.values.shape[indices:])
            self._rows = torch.empty(0, indices, dtype=torch.int64, device="cpu"), empty
        self._gathers = [self._gather(rows) for rows in self._rows]
        self.meter.pushed_bytes += sum(rows.nbytes for rows in self._rows)

    def _gather(self, rows: torch.Tensor) -> Tuple[dist.Work, List[torch.Tensor]]:
        padded = rows.new_zeros(max(1, *self._counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        gathered = [torch.empty_like(padded) for _ in range(self._workers)]
        pieces = [as_real(piece) for piece in gathered]
        work = dist.all_gather(pieces, as_real(padded), group=self._groups[1], async_op=True)
        return work, gathered

    def deliver(self, job: SparseJob) -> None:
        """Add up the rows of all workers."""
        joined: List[torch.Tensor] = []
        for work, gathered in self._gathers:
            with self.meter.timing("wait_seconds"):
                work.wait()
            self.meter.pulled_bytes += sum(rows.nbytes for rows in gathered)
            joined.append(torch.cat([rows[:n] for rows, n in zip(gathered, self._counts)]))
        indices, values = joined
        if job.average:
            values = values / self._workers
        total = torch.sparse_coo_tensor(
            indices.T, values, job.values.shape, device="cpu", check_invariants=False
        )
        total = total.coalesce().to(job.values.dtype)
        if not total.values().isfinite().all():
            job.nonfinite.append(job.name)
        job.result = total.to(job.values.device)
        self.meter.steps += 1

    def abandon(self, outcome: Stamp) -> None:
        self._heads.send_instead(header.broken(outcome))
