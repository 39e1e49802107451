"""BytePS's names for the processes of torch.distributed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Optional

import torch.distributed as dist

from .. import env

_SETTLING = 0.1  # seconds


def init(lazy: bool = True, timeout: Optional[timedelta] = None) -> None:
    """Meet the other workers that torchrun started, unless this was done already.

    A process that torchrun did not start is the only worker.

    Parameters
    ----------
    lazy : bool
        Accepted, without effect, as BytePS has it.
    timeout : timedelta, optional
        How long a collective may wait for others; by default torch.distributed's.
    """
    if dist.is_initialized():
        return
    if env.under_torchrun():
        dist.init_process_group(timeout=timeout)
    else:
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)


def shutdown() -> None:
    """Leave; nothing can be exchanged afterwards."""
    from .functions import forget

    forget()
    # Gloo's threads free what a collective used after it is done, for which they may need Python's
    # lock. PyTorch holds it while it waits for these threads to end: they have to be done before.
    time.sleep(_SETTLING)
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """This worker's number among all."""
    return dist.get_rank()


def size() -> int:
    """The number of workers."""
    return dist.get_world_size()


def local_rank() -> int:
    """This worker's number on its machine, as torchrun says; without it, among all."""
    place = env.of_torchrun("LOCAL_RANK")
    return rank() if place is None else place


def local_size() -> int:
    """The number of workers on this machine, as torchrun says; without it, of all."""
    return env.of_torchrun("LOCAL_WORLD_SIZE") or size()
