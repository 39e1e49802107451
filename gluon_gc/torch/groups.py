"""Gloo's process groups that gluon_gc makes, with the time-outs that were asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Optional, Sequence

import torch.distributed as dist

from .. import env

_asked: Optional[timedelta] = None


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
    return dist.new_group(
        list(ranks), timeout(), backend="gloo", use_local_synchronization=not everybody
    )
