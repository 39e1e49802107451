"""The workers of an exchange, as groups of torch.distributed."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from ... import env
from ...exchange.machines import Machines
from ...exchange.transport import Messages
from . import gathering, groups, nccl


class GroupMembers:
    """`Members` in two groups, one for each phase. All of these workers create it."""

    def __init__(self, ranks: Sequence[int], everybody: bool = False) -> None:
        self.ranks, self._everybody = list(ranks), everybody
        self.rank = self.ranks.index(dist.get_rank())
        self._groups = groups.take(self.ranks, everybody)
        self._nccl_groups: Optional[groups.Pair] = None
        self._tags = groups.Tags(self.ranks)

    def messages(self, phase: int, tag: int, rooms: Mapping[int, np.ndarray]) -> Messages:
        return groups.TRANSPORT.messages(self._groups[phase], tag, rooms)

    def new_tag(self, identity: int) -> int:
        return self._tags.take(identity)

    def all_reduce(self, values: torch.Tensor) -> dist.Work:
        return dist.all_reduce(values, group=self._groups[0], async_op=True)

    def gather(self, mine: Any, doing: str) -> List[Any]:
        # The other group may sum tensors meanwhile, on another thread.
        return gathering.gather(mine, doing, self._groups[1])

    def gather_to_first(self, mine: Any, doing: str) -> Optional[List[Any]]:
        """Like `gather`, but only the member with rank 0 gets a list. Others get None."""
        return gathering.gather_to_first(mine, doing, self._groups[1])

    def gather_numbers(self, mine: Sequence[int], doing: str) -> List[Tuple[int, ...]]:
        """Like `gather`, for integers. Each member passes equally many."""
        return gathering.gather_numbers(mine, doing, self._groups[1])

    def nccl_groups(self) -> groups.Pair:
        """Return two groups of NCCL. All of these workers call this together."""
        if self._nccl_groups is None:
            self._nccl_groups = groups.take(self.ranks, self._everybody, nccl.new_group)
        return self._nccl_groups

    def close(self, keep: Optional[Any] = None) -> None:
        if keep is not None:
            groups.keep(keep)
        groups.give_back(self._groups)
        if self._nccl_groups is not None:
            groups.give_back(self._nccl_groups)


def find_machines(group: Optional[dist.ProcessGroup]) -> Optional[Machines]:
    """Return the machines of the job as the launcher describes them.

    The result is None if machines do not sum first: with one worker a machine, a single machine,
    unequal machines, or a process group of the user.
    """
    local_size = env.of_torchrun("LOCAL_WORLD_SIZE") or 1
    rank, size = dist.get_rank(), dist.get_world_size()
    if group is not None or size == 1:
        return None
    mine = (local_size, env.of_torchrun("LOCAL_RANK") or 0)
    layout = gathering.gather(mine, "set up their compression")
    even = all(each == (local_size, rank % local_size) for rank, each in enumerate(layout))
    whole = size % local_size == 0  # false if only some workers have resumed
    if not (even and whole and 1 < local_size < size):
        return None
    number, local_rank = divmod(rank, local_size)
    first = number * local_size
    inside = GroupMembers(range(first, first + local_size))
    across = GroupMembers(range(local_rank, size, local_size))
    return Machines(number, size // local_size, local_rank, local_size, inside, across)
