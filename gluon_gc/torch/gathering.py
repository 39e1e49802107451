"""What all workers call together: each learns what the others have."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import agreement
from ..agreement import Facts
from .watchdog import waiting

Gather = Callable[[Any, str], List[Any]]
"""Gives what all workers have, by rank, given this worker's, and what all are doing in words."""


def gather(mine: Any, doing: str, group: Optional[dist.ProcessGroup] = None) -> List[Any]:
    """The objects of all workers of a group, by rank.

    Parameters
    ----------
    mine : object
        That can be pickled.
    doing : str
        What all workers must do, for a warning if some of them do not come.
    group : ProcessGroup, optional
        By default of all workers.
    """
    everybody: List[Any] = [None] * dist.get_world_size(group)
    with waiting(lambda: f"worker {dist.get_rank()} waits until all workers {doing}"):
        dist.all_gather_object(everybody, mine, group=group)
    return everybody


def gather_numbers(
    mine: Sequence[int], doing: str, group: Optional[dist.ProcessGroup] = None
) -> List[Tuple[int, ...]]:
    """The numbers of all workers, by rank: int64, equally many on each; see `gather`."""
    everybody = torch.empty(dist.get_world_size(group), len(mine), dtype=torch.int64)
    with waiting(lambda: f"worker {dist.get_rank()} waits until all workers {doing}"):
        dist.all_gather(list(everybody), torch.tensor(mine), group=group)
    return list(map(tuple, everybody.tolist()))


def agree(gather: Gather, facts: Facts, doing: str) -> None:
    """Raise a RuntimeError unless all workers state the same facts."""

    def ask(message: agreement.Message) -> agreement.Message:
        return agreement.compare(gather(message, doing))

    agreement.reach(dist.get_rank(), facts, ask)
