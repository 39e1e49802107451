"""BytePS's names for the processes of torch.distributed."""

from __future__ import annotations

import gc
import itertools
import time
from datetime import timedelta
from typing import Optional

import torch.distributed as dist

from .. import env
from ..log import logger
from . import closing, groups, rendezvous

_SETTLING = 0.1  # seconds
_rounds = itertools.count()  # of init and shutdown, which use different keys of one store


def init(lazy: bool = True, timeout: Optional[timedelta] = None) -> None:
    """Meet the other workers that a launcher started, unless this was done already.

    The launcher is torchrun, bpslaunch, mpirun or SLURM's srun. A process that none of them has
    started is the only worker.

    Parameters
    ----------
    lazy : bool
        Accepted, without effect, as BytePS has it.
    timeout : timedelta, optional
        How long a collective may wait for others, at most GLUON_GC_TIMEOUT; by default
        torch.distributed's.

    Raises
    ------
    ConfigurationError
        The environment says that there are other workers, but not enough to find them.
    ConnectionError
        They have not come within GLUON_GC_CONNECT_TIMEOUT.
    """
    groups.ask_for(timeout)
    if env.get("BYTEPS_TRACE_ON"):
        logger.warning("BYTEPS_TRACE_ON has no effect with PyTorch: use torch.profiler")
    if dist.is_initialized():
        rendezvous.join_scheduler()
        return
    timeout = groups.timeout()
    store, rank, size = rendezvous.meet(timeout)
    store = dist.PrefixStore(f"gluon_gc {next(_rounds)}", store)
    dist.init_process_group(store=store, rank=rank, world_size=size, timeout=timeout)


def shutdown() -> None:
    """Leave; nothing can be exchanged afterwards.

    What is under way is finished, and every CompressionState is closed.
    """
    from .functions import forget

    forget()
    closing.close_all()
    groups.forget()
    gc.collect()  # a group ends its threads when nothing refers to it
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
    """This worker's number on its machine, as its launcher says; without it, among all."""
    place = env.of_torchrun("LOCAL_RANK")
    return rank() if place is None else place


def local_size() -> int:
    """The number of workers on this machine, as its launcher says; without it, of all."""
    return env.of_torchrun("LOCAL_WORLD_SIZE") or size()
