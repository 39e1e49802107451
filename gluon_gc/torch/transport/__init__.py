"""How PyTorch's exchanges travel: process groups, Gloo, NCCL, and work on GPUs."""

from __future__ import annotations

from typing import Optional, Tuple

import torch.distributed as dist

from ...exchange.exchange import Exchange
from .. import closing
from . import groups
from .arrays import Tensors
from .members import GroupMembers, find_machines

Groups = Tuple[Optional[dist.ProcessGroup], Optional[dist.ProcessGroup]]
"""The first two arguments of `new_exchange`."""


def new_exchange(
    group: dist.ProcessGroup | None = None,
    inner_group: dist.ProcessGroup | None = None,
    two_levels: bool = True,
) -> Exchange:
    """Return an exchange of all workers, or of those in a group. All of them call this.

    `two_levels`: machines, or the inner groups that the workers give, sum their values first.
    """
    groups.require_init()
    if dist.get_rank(group) < 0:
        raise ValueError("this worker is not in process_group")
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    groups.settle(group)
    machines = find_machines(ranks, group, inner_group) if two_levels else None
    exchange = Exchange(GroupMembers(ranks, group is None), Tensors(), machines)
    closing.opened(exchange)
    return exchange
