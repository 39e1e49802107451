"""The workers of an exchange, as groups of torch.distributed."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from ... import env
from ...exchange.machines import Machines, Stated, groups_of
from ...exchange.transport import Messages
from . import gathering, groups, nccl


class GroupMembers:
    """`Members` in two groups, one for each phase. All of these workers create it.

    Their `ranks` may have any order, but a process group sorts them.
    """

    def __init__(self, ranks: Sequence[int], everybody: bool = False) -> None:
        self.ranks, self._everybody = list(ranks), everybody
        self.rank = self.ranks.index(dist.get_rank())
        self._sorted = sorted(self.ranks)
        self._in_group = [self._sorted.index(rank) for rank in self.ranks]
        self._groups = groups.take(self._sorted, everybody)
        self._nccl_groups: groups.Pair | None = None
        self._tags = groups.Tags(self._sorted)

    def messages(self, phase: int, tag: int, rooms: Mapping[int, np.ndarray]) -> Messages:
        return _Messages(self._groups[phase], tag, rooms, self._in_group)

    def new_tag(self, identity: int) -> int:
        return self._tags.take(identity)

    def all_reduce(self, values: torch.Tensor) -> dist.Work:
        return dist.all_reduce(values, group=self._groups[0], async_op=True)

    def gather(self, mine: Any, doing: str) -> list[Any]:
        # The other group may sum tensors meanwhile, on another thread.
        gathered = gathering.gather(mine, doing, self._groups[1])
        return [gathered[rank] for rank in self._in_group]

    def gather_to_first(self, mine: Any, doing: str) -> list[Any] | None:
        """Like `gather`, but only the member with rank 0 gets a list. Others get None.

        The ranks must be sorted.
        """
        return gathering.gather_to_first(mine, doing, self._groups[1])

    def gather_numbers(self, mine: Sequence[int], doing: str) -> list[tuple[int, ...]]:
        """Like `gather`, for integers. Each member passes equally many."""
        gathered = gathering.gather_numbers(mine, doing, self._groups[1])
        return [gathered[rank] for rank in self._in_group]

    def nccl_groups(self) -> groups.Pair:
        """Return two groups of NCCL. All of these workers call this together."""
        if self._nccl_groups is None:
            self._nccl_groups = groups.take(self._sorted, self._everybody, nccl.new_group)
        return self._nccl_groups

    def close(self, keep: Any | None = None) -> None:
        if keep is not None:
            groups.keep(keep)
        groups.give_back(self._groups)
        if self._nccl_groups is not None:
            groups.give_back(self._nccl_groups)


class _Messages:
    """`Messages` by members, whose ranks in the process group are `in_group`."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        tag: int,
        rooms: Mapping[int, np.ndarray],
        in_group: Sequence[int],
    ) -> None:
        self._in_group = in_group
        messages = groups.TRANSPORT.messages(group, tag, self._by_rank(rooms))
        self._send, self.wait, self.expect = messages.send, messages.wait, messages.expect

    def _by_rank(self, arrays: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        return {self._in_group[member]: array for member, array in arrays.items()}

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        self._send(self._by_rank(data))


def find_machines(
    ranks: Sequence[int],
    group: dist.ProcessGroup | None,
    inner_group: dist.ProcessGroup | None,
) -> Machines | None:
    """Return the machines of a group's workers, which have these ranks in the job.

    They are the inner groups that the workers give or, without any, the launcher's machines. The
    result is None if no machine sums first; see `groups_of`, also for errors.
    """
    if len(ranks) == 1 and inner_group is None:
        return None
    stated = Stated(
        env.get("LOCAL_WORLD_SIZE") or 1,
        env.get("LOCAL_RANK") or 0,
        None if inner_group is None else _ranks_of(inner_group),
    )
    machines = groups_of(ranks, gathering.gather(stated, "set up their compression", group))
    if machines is None:
        return None
    own = list(ranks).index(dist.get_rank())
    number = next(number for number, members in enumerate(machines) if own in members)
    local_rank = machines[number].index(own)
    inside = GroupMembers([ranks[member] for member in machines[number]])
    across = GroupMembers([ranks[members[local_rank]] for members in machines])
    return Machines(machines, number, local_rank, inside, across)


def _ranks_of(inner_group: dist.ProcessGroup) -> list[int]:
    """Return the ranks of an inner group's workers in the job; empty if this worker is not in it.

    Raises TypeError if it is not a ProcessGroup.
    """
    if inner_group is dist.GroupMember.NON_GROUP_MEMBER:
        return []
    if not isinstance(inner_group, dist.ProcessGroup):
        kind = type(inner_group).__name__
        raise TypeError(f"inner_group must be a ProcessGroup of torch.distributed, got {kind}")
    return dist.get_process_group_ranks(inner_group) if dist.get_rank(inner_group) >= 0 else []
