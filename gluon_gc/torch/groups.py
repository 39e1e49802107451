"""The process groups of gluon_gc, and their time-outs.

A group that is no longer used is kept for the next user with the same workers. Destroying it would
be wrong: PyTorch may give a new group the same name, and then finds the old group's addresses.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from datetime import timedelta
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch.distributed as dist
from torch.distributed import constants

from .. import env
from .gloo import Gloo
from .transport import Transport

TRANSPORT: Transport = Gloo()
"""The engine that sends the bytes of all groups."""

Pair = Tuple[dist.ProcessGroup, dist.ProcessGroup]
"""Two groups of the same workers. Their collectives may run at the same time."""

Make = Callable[[Sequence[int], bool], dist.ProcessGroup]
"""Creates a group, as `new_group` does."""

_DEFAULT_TIMEOUTS = (constants.default_pg_timeout, constants.default_pg_nccl_timeout)
_TAGS = 2**16  # the number of tags that an exchange may use

_asked: Optional[timedelta] = None
_free: Dict[Tuple[Make, Tuple[int, ...]], List[Pair]] = defaultdict(list)
_uses: Dict[Tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


def ask_for(timeout: Optional[timedelta]) -> None:
    """Set the time-out of groups that are made from now on; None: see `timeout`."""
    global _asked
    _asked = timeout


def timeout() -> Optional[timedelta]:
    """Return the time-out of new groups; None: PyTorch's default.

    It is the one that `bps.init` was given, or else the longer one of GLUON_GC_TIMEOUT and the
    script's.
    """
    if _asked is not None:
        return _asked
    seconds = env.get("GLUON_GC_TIMEOUT")
    limits = [_of_script(), timedelta(seconds=seconds) if seconds else None]
    return max((limit for limit in limits if limit is not None), default=None)


def _of_script() -> Optional[timedelta]:
    """Return the time-out that the script gave `init_process_group`; None if it gave none."""
    if not dist.is_initialized():
        return None
    group = dist.group.WORLD
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        limit = getattr(options, "_timeout", None)
        if limit is not None and limit not in _DEFAULT_TIMEOUTS:
            return limit
    return None


def require_init() -> None:
    """Raise a RuntimeError if there is no job whose workers could exchange anything."""
    if not dist.is_initialized():
        raise RuntimeError("gluon_gc has not been initialized; call bps.init() first")


def new_group(ranks: Sequence[int], everybody: bool = False) -> dist.ProcessGroup:
    """Create a group of these workers.

    `everybody`: all workers of the job call this, not only the members.
    """
    return TRANSPORT.new_group(ranks, timeout(), everybody)


def take(ranks: Sequence[int], everybody: bool = False, make: Make = new_group) -> Pair:
    """Return two groups of these workers, until `give_back`. All of these workers call this."""
    free = _free[make, tuple(ranks)]
    return free.pop() if free else (make(ranks, everybody), make(ranks, everybody))


def give_back(pair: Pair, make: Make = new_group) -> None:
    """Make two groups available to the next `take` with the same workers."""
    _free[make, tuple(dist.get_process_group_ranks(pair[0]))].append(pair)


def tags(ranks: Sequence[int]) -> Iterator[int]:
    """Return unused tags for messages between these workers. All of these workers call this."""
    first = next(_uses[tuple(ranks)]) * _TAGS % TRANSPORT.tags
    return iter(range(first, first + _TAGS))


def forget() -> None:
    """Forget all groups, because PyTorch destroys them."""
    _free.clear()
    _uses.clear()
