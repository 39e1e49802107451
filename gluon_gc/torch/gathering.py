"""Small collectives in which each worker learns the objects or numbers of all workers."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import agreement
from ..agreement import Facts
from .watchdog import waiting

Gather = Callable[[Any, str], List[Any]]
"""Returns the objects of all workers, given this worker's object and the common action in words."""


def gather(mine: Any, doing: str, group: Optional[dist.ProcessGroup] = None) -> List[Any]:
    """Return the objects of all workers of a group, by rank.

    Parameters
    ----------
    mine : object
        It must be picklable.
    doing : str
        The common action of the workers, such as "call resume". A warning contains it if a worker
        does not come.
    group : ProcessGroup, optional
        Default: all workers.
    """
    gathered: List[Any] = [None] * dist.get_world_size(group)
    with waiting(lambda: f"worker {dist.get_rank()} waits until all workers {doing}"):
        dist.all_gather_object(gathered, mine, group=group)
    return gathered


def gather_to_first(
    mine: Any, doing: str, group: Optional[dist.ProcessGroup] = None
) -> Optional[List[Any]]:
    """Like `gather`, but only the worker with rank 0 receives the objects. Others get None."""
    first = dist.get_global_rank(group or dist.group.WORLD, 0)
    size = dist.get_world_size(group)
    gathered: Optional[List[Any]] = [None] * size if dist.get_rank() == first else None
    with waiting(lambda: f"worker {dist.get_rank()} waits until all workers {doing}"):
        dist.gather_object(mine, gathered, dst=first, group=group)
    return gathered


def gather_numbers(
    mine: Sequence[int], doing: str, group: Optional[dist.ProcessGroup] = None
) -> List[Tuple[int, ...]]:
    """Like `gather`, for int64 numbers. Each worker passes equally many."""
    gathered = torch.empty(dist.get_world_size(group), len(mine), dtype=torch.int64, device="cpu")
    with waiting(lambda: f"worker {dist.get_rank()} waits until all workers {doing}"):
        dist.all_gather(list(gathered), torch.tensor(mine, device="cpu"), group=group)
    return list(map(tuple, gathered.tolist()))


def agree(gather: Gather, facts: Facts, doing: str) -> None:
    """Raise a RuntimeError unless all workers state the same facts."""

    def ask(message: agreement.Message) -> agreement.Message:
        return agreement.compare(gather(message, doing))

    agreement.reach(dist.get_rank(), facts, ask)
