"""suspend and resume: workers leave their job, and all or some of them go on as another job."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist

from ..checkpoint import STREAM, Place
from ..compression import CompressionParams
from ..options import is_whole
from . import coder_states, functions, groups, rendezvous, runtime, saving
from .averager import Averager, averagers
from .gathering import gather
from .rendezvous import Meeting
from .state import CompressionState

_SUSPENDED = "call bps.resume() first: the workers have called bps.suspend()"


class _Kept:
    """The residuals, momentum and random streams of one optimizer's compression.

    Parameters
    ----------
    averager : Averager
    """

    def __init__(self, averager: Averager) -> None:
        averager.leave()
        self._state = averager.state
        self._saved = self._state.state_dict()
        self._sums = dict(_sums(self._state))
        self._state.suspend(_SUSPENDED)

    def give_back(self, all_are_there: bool) -> None:
        """Go on bit for bit, or with an even share of all workers' residuals and momentum."""
        self._state.resume()
        if all_are_there:
            self._state.load_state_dict(self._saved)
            return
        exchange = self._state.exchange
        count = exchange.workers if exchange.machines is None else exchange.machines.count
        arrays = {place: array / array.dtype.type(count) for place, array in self._sums.items()}
        own = coder_states.unpacked(self._saved["arrays"])
        arrays.update({place: array for place, array in own.items() if place.node == "trainer"})
        saving.apply(exchange, self._state.momentum, arrays)


def _sums(state: CompressionState) -> Iterator[Tuple[Place, np.ndarray]]:
    """The sums over all workers of residuals and of momentum, by chunk."""
    for chunk in state.exchange.chunks:
        plan, piece, coder = chunk.plan, chunk.piece, chunk.coder
        layout = {} if plan.params is None else plan.params.state_layout(plan.size, plan.dtype)
        own = {} if coder is None else coder.state()
        for kind, (shape, dtype) in layout.items():
            if kind != STREAM:
                total = torch.from_numpy(own.get(kind, np.zeros(shape, dtype)))
                dist.all_reduce(total)
                yield Place(piece.tensor, "worker", kind, piece.begin), total.numpy()


class _Suspended(NamedTuple):
    """The data with which a worker goes on.

    Parameters
    ----------
    meeting : Meeting
        The place where it has met the other workers.
    kept : list of _Kept
    declared : dict
        The compression of push_pull's tensors.
    """

    meeting: Meeting
    kept: List[_Kept]
    declared: Dict[str, CompressionParams]


_suspended: Optional[_Suspended] = None


def suspend() -> None:
    """Leave the other workers, to `resume` later; all workers call this.

    The residuals and momentum of DistributedOptimizer and CrossBarrier are kept. A step that has
    begun is left out. Everything else that uses torch.distributed has to be made anew afterwards,
    such as a DistributedDataParallel.
    """
    global _suspended
    if not dist.is_initialized():
        raise RuntimeError("there is nothing to suspend: bps.init() was not called")
    everybody = gather(sorted(averagers.keys()), "call suspend")
    common = sorted(set.intersection(*map(set, everybody)))  # some may be garbage, on some workers
    open_ones = [averagers[number] for number in common if averagers[number].state.can_resume]
    kept = [_Kept(averager) for averager in open_ones]
    _suspended = _Suspended(rendezvous.leave(), kept, functions.declarations())
    runtime.shutdown()


def resume(
    num_workers: int, num_servers: int = 0, global_rank: int = -1, context: Any = None
) -> None:
    """Go on after `suspend`, with all workers or some; every worker that goes on calls this.

    Optimizers go on with their next step. If all workers are there, with their ranks, they go on
    bit for bit. Otherwise each has an even share of the sum of all residuals, and of all momenta.

    Parameters
    ----------
    num_workers : int
        The number of workers that go on, at most the number before. To add workers, start the job
        anew.
    num_servers : int
        Ignored: PyTorch needs no servers.
    global_rank : int
        This worker's rank from now on; -1: as before.
    context : object
        Ignored.

    Raises
    ------
    RuntimeError
        `suspend` was not called.
    ValueError
        Wrong arguments.
    """
    global _suspended
    if _suspended is None:
        raise RuntimeError("bps.resume() goes on after bps.suspend(), which was not called")
    meeting, kept, declared = _suspended
    _require(num_workers, "num_workers", 1, meeting.size)
    rank = meeting.rank if global_rank == -1 else global_rank
    _require(rank, "global_rank", 0, num_workers - 1)
    here = Meeting(meeting.store, int(rank), int(num_workers))
    rendezvous.go_on(here)
    try:
        runtime.init(timeout=groups.timeout())
    except RuntimeError as error:
        raise ConnectionError(
            f"worker {rank} cannot meet the others again: {str(error).splitlines()[0]}; unless "
            "torchrun has started them, the process that was worker 0 must still be there"
        ) from error
    _suspended = None
    all_are_there = all(gather(here == meeting, "call resume"))
    for one in kept:
        one.give_back(all_are_there)
    functions.declare_again(declared)


def _require(value: Any, name: str, least: int, most: int) -> None:
    if not is_whole(value) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
