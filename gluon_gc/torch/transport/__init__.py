"""How PyTorch's exchanges travel: process groups, Gloo, NCCL, and work on GPUs."""

from __future__ import annotations

from typing import Optional

import torch.distributed as dist

from ...exchange.exchange import Exchange
from .. import closing
from . import groups
from .arrays import Tensors
from .members import GroupMembers, find_machines


def new_exchange(group: Optional[dist.ProcessGroup] = None) -> Exchange:
    """Return an exchange of all workers, or of those in a group. All of them call this."""
    groups.require_init()
    if dist.get_rank(group) < 0:
        raise ValueError("this worker is not in process_group")
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    groups.settle(group)
    members = GroupMembers(ranks, group is None)
    exchange = Exchange(members, Tensors(members), find_machines(group))
    closing.opened(exchange)
    return exchange
