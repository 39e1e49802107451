"""Start-up and shutdown of a worker, and its rank, with BytePS's function names."""

from __future__ import annotations

import gc
import itertools
from datetime import timedelta
from typing import Any, Callable, TypeVar

import torch.distributed as dist

from ... import env
from ...log import logger, warn_of_misspelt
from ...mailbox import connect, current, disconnect, requested
from .. import closing
from ..transport import groups
from ..watchdog import waiting
from . import rendezvous

Answer = TypeVar("Answer")

_rounds = itertools.count()  # numbers the calls of init, so that each has its own store keys


def init(
    lazy: bool = True,
    timeout: None | float | timedelta = None,
    mailbox: str | None = None,
    **settings: Any,
) -> None:
    """Connect to the other workers of the job, unless this was done already.

    The workers are started by torchrun, bpslaunch, mpirun or SLURM's srun. A process without a
    launcher is the only worker. With a mailbox, the job is one site of a run.

    Parameters
    ----------
    lazy : bool
        Accepted for BytePS's sake, without effect.
    timeout : float or timedelta, optional
        The time after which a collective gives up, in seconds. Default: the longer one of
        GLUON_GC_TIMEOUT and the timeout that the script gave `init_process_group`, if any; else
        the default of torch.distributed.
    mailbox : str, optional
        The URL of a run: "s3://bucket/run1", "gs://...", "az://...", "file:///folder" or a folder.
        Its sites exchange the rounds of `local_steps` there. Default: GLUON_GC_MAILBOX.
    **settings
        min_workers, grace, keep, samples_per_step and worker_name; see `gluon_gc.mailbox.Run`.

    Raises
    ------
    ValueError
        The timeout is not above 0, or a setting of the mailbox is wrong.
    ConfigurationError
        The environment says that there are other workers, but not how to reach them.
    ConnectionError
        Other workers did not connect within GLUON_GC_CONNECT_TIMEOUT.
    """
    if timeout is not None and not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    if timeout is not None and timeout <= timedelta(0):
        raise ValueError(f"timeout must be above 0, got {timeout.total_seconds()} s")
    groups.ask_for(timeout)
    closing.await_threads_at_exit()
    if env.get("BYTEPS_TRACE_ON"):
        logger.warning("BYTEPS_TRACE_ON has no effect with PyTorch: use torch.profiler")
    if dist.is_initialized():
        rendezvous.join_scheduler()
    else:
        timeout = groups.timeout()
        store, rank, size = rendezvous.join(timeout)
        store = dist.PrefixStore(f"gluon_gc {next(_rounds)}", store)
        dist.init_process_group(store=store, rank=rank, world_size=size, timeout=timeout)
    url = requested(mailbox, settings)
    if url:
        site = Site() if dist.get_world_size() > 1 else None
        connect(url, "torch", site=site, **settings)
    if local_rank() == 0:  # once a machine: its workers have the same variables
        warn_of_misspelt()


class Site:
    """`mailbox.Site` of the workers of torch.distributed. All call `share` together."""

    def __init__(self) -> None:
        self.is_first, self.size = dist.get_rank() == 0, dist.get_world_size()
        self._group, _ = groups.take(range(self.size), everybody=True)

    def share(self, make: Callable[[], Answer]) -> Answer:
        shared: tuple[Answer | None, BaseException | None] = None, None
        if self.is_first:
            try:
                shared = make(), None
            except Exception as error:
                shared = None, error
        received = [shared]
        with waiting(lambda: "a worker waits for what worker 0 of its site learns"):
            dist.broadcast_object_list(received, src=0, group=self._group)
        answer, error = received[0]
        if error is not None:
            raise error
        return answer


def shutdown() -> None:
    """Finish everything under way, close all CompressionStates, and leave the job.

    Nothing can be exchanged afterwards.
    """
    from .push_pull import forget

    disconnect()
    forget()
    closing.close_all()
    groups.forget()
    gc.collect()  # a group ends its threads when nothing refers to it
    closing.await_threads()
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Return this worker's rank among all workers."""
    groups.require_init()
    return dist.get_rank()


def size() -> int:
    """Return the number of workers; with a mailbox, of those in the last round.

    With a mailbox, all workers of a site call this together.
    """
    groups.require_init()
    run = current()
    return dist.get_world_size() if run is None else run.size


def local_rank() -> int:
    """Return this worker's rank on its machine, or `rank` if the launcher does not set it."""
    local = env.get("LOCAL_RANK")
    return rank() if local is None else local


def local_size() -> int:
    """Return the number of workers on this machine, or `size` if the launcher does not set it."""
    return env.get("LOCAL_WORLD_SIZE") or size()
