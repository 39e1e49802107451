"""The process groups that gluon_gc makes, with the time-outs that were asked for.

A group that is no longer needed is used again by the next one of the same workers: PyTorch may give
a new group the name of one that was destroyed, and then finds the old one's addresses.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from datetime import timedelta
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import torch.distributed as dist

from .. import env
from .gloo import Gloo
from .transport import Transport

TRANSPORT: Transport = Gloo()
"""The engine of all groups."""

Pair = Tuple[dist.ProcessGroup, dist.ProcessGroup]
"""Two groups of the same workers, whose collectives may run at the same time."""

_TAGS = 2**16  # that an exchange may use

_asked: Optional[timedelta] = None
_free: Dict[Tuple[int, ...], List[Pair]] = defaultdict(list)
_uses: Dict[Tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


def ask_for(timeout: Optional[timedelta]) -> None:
    """Have groups that are made from now on give up after this time; None: after PyTorch's."""
    global _asked
    _asked = timeout


def timeout() -> Optional[timedelta]:
    """How long a wait may last: as asked for, and at most GLUON_GC_TIMEOUT; None: PyTorch's."""
    seconds = env.get("GLUON_GC_TIMEOUT")
    limits = [_asked, timedelta(seconds=seconds) if seconds else None]
    return min((limit for limit in limits if limit is not None), default=None)


def new_group(ranks: Sequence[int], everybody: bool = False) -> dist.ProcessGroup:
    """A group of these workers; `everybody`: all workers of the job call this, not just they."""
    return TRANSPORT.new_group(ranks, timeout(), everybody)


def take(ranks: Sequence[int], everybody: bool = False) -> Pair:
    """Two groups of these workers, who all call this, for `give_back`."""
    free = _free[tuple(ranks)]
    return free.pop() if free else (new_group(ranks, everybody), new_group(ranks, everybody))


def give_back(pair: Pair) -> None:
    """Let others of the same workers use two groups."""
    _free[tuple(dist.get_process_group_ranks(pair[0]))].append(pair)


def tags(ranks: Sequence[int]) -> Iterator[int]:
    """Numbers for messages between these workers, who all call this; each is given out once."""
    first = next(_uses[tuple(ranks)]) * _TAGS % TRANSPORT.tags
    return iter(range(first, first + _TAGS))


def forget() -> None:
    """Forget all groups, since PyTorch destroys them."""
    _free.clear()
    _uses.clear()
