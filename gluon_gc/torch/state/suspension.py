"""suspend and resume: all or some workers leave the job, and continue as another job."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ... import mailbox
from ...compression import CompressionParams
from ...options import is_whole
from ...state import OF_ALL, STREAM, Arrays, Key
from ...state.division import Share, arrays_of_worker
from ..byteps import push_pull as functions
from ..byteps import rendezvous, runtime
from ..byteps.rendezvous import Rendezvous
from ..gradients.state import CompressionState
from ..optimizer.distributed import Averager, averagers
from ..transport import groups
from ..transport.gathering import gather
from . import coder_states, gradients

_SUSPENDED = "call bps.resume() first: the workers have called bps.suspend()"


class _Kept:
    """The residuals, momentum and random streams of one optimizer's compression."""

    def __init__(self, averager: Averager) -> None:
        averager.leave()
        self._state = averager.state
        self._saved = self._state.state_dict()
        self._sums = _sums(self._state)
        self._state.suspend(_SUSPENDED)

    def give_back(self, all_are_there: bool) -> None:
        """Continue bit for bit, or with an equal share of all workers' residuals and momentum."""
        self._state.resume()
        if all_are_there:
            self._state.load_state_dict(self._saved)
            return
        exchange = self._state.exchange
        machines = exchange.workers if exchange.machines is None else exchange.machines.count
        own = coder_states.unpacked(self._saved["arrays"])
        of_all = {key: array for key, array in own.items() if key.node == OF_ALL}
        shares = {
            name: Share(1, machines if params.hierarchical else exchange.workers)
            for name, params in self._state.params.items()
        }
        arrays = arrays_of_worker([{**self._sums, **of_all}], exchange.rank, shares)
        gradients.apply(self._state.lane, self._state.momentum, arrays)
        steps = self._state.gradients
        steps.count, steps.rates.last = self._saved["steps"], dict(self._saved["learning_rates"])


def _sums(state: CompressionState) -> Arrays:
    """Return the sums of residuals and of momentum over all workers, for each chunk."""
    undone, _ = state.gradients.undo.waiting()
    sums: Arrays = {}
    for chunk in state.lane.chunks:
        plan, piece, coder = chunk.plan, chunk.piece, chunk.coder
        layout = {} if plan.params is None else plan.params.state_layout(plan.size, plan.dtype)
        own = {} if coder is None else coder.state(undone=piece.tensor in undone)
        for kind, (shape, dtype) in layout.items():
            if kind != STREAM:
                total = torch.from_numpy(own.get(kind, np.zeros(shape, dtype)))
                dist.all_reduce(total)
                sums[Key(piece.tensor, "worker", kind, piece.begin)] = total.numpy()
    return sums


class _Suspended(NamedTuple):
    """The data with which a worker resumes."""

    rendezvous: Rendezvous  # of the former workers
    kept: list[_Kept]
    declared: dict[str, CompressionParams]  # the compression of push_pull's tensors


_suspended: _Suspended | None = None


def suspend() -> None:
    """Leave the other workers, until `resume`. All workers call this.

    The residuals and momentum of DistributedOptimizer and CrossBarrier are kept. A step that has
    begun is skipped. All other objects that use torch.distributed, such as a
    DistributedDataParallel, must be created again after `resume`.

    Raises
    ------
    RuntimeError
        `init` was not called, or the process has a mailbox.
    """
    global _suspended
    mailbox.require_no_run("suspend")
    if not dist.is_initialized():
        raise RuntimeError("there is nothing to suspend: bps.init() was not called")
    numbers = gather(sorted(averagers.keys()), "call suspend")
    common = sorted(set.intersection(*map(set, numbers)))  # some may be deleted on a worker
    open_ones = [averagers[number] for number in common if averagers[number].state.can_resume]
    kept = [_Kept(averager) for averager in open_ones]
    _suspended = _Suspended(rendezvous.leave(), kept, functions.declarations())
    runtime.shutdown()


def resume(
    num_workers: int, num_servers: int = 0, global_rank: int = -1, context: Any = None
) -> None:
    """Continue after `suspend`, with all or some workers. Each worker that continues calls this.

    Optimizers continue with their next step. If all workers resume with their former ranks, the
    results are bit for bit those of an uninterrupted run. Otherwise, the sums of all residuals and
    of all momentum are divided equally among the workers.

    Parameters
    ----------
    num_workers : int
        The number of workers that continue, at most the former number. To add workers, start a new
        job.
    num_servers : int
        Ignored, because PyTorch needs no servers.
    global_rank : int
        This worker's new rank; -1: the former rank.
    context : object
        Ignored.

    Raises
    ------
    RuntimeError
        `suspend` was not called.
    ValueError
        An argument is wrong, or two workers have the same rank.
    ConnectionError
        Other workers did not call `resume` within GLUON_GC_CONNECT_TIMEOUT.
    """
    global _suspended
    if _suspended is None:
        raise RuntimeError("bps.resume() must follow bps.suspend(), which was not called")
    former, kept, declared = _suspended
    _require(num_workers, "num_workers", 1, former.size)
    rank = former.rank if global_rank == -1 else global_rank
    _require(rank, "global_rank", 0, num_workers - 1)
    here = Rendezvous(former.store, int(rank), int(num_workers))
    rendezvous.go_on(here)
    runtime.init(timeout=groups.timeout())
    _suspended = None
    all_are_there = all(gather(here == former, "call resume"))
    for compression_state in kept:
        compression_state.give_back(all_are_there)
    functions.declare_again(declared)


def _require(value: Any, name: str, least: int, most: int) -> None:
    if not is_whole(value) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
