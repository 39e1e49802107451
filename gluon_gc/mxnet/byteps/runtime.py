"""The process in its cluster: init, shutdown, suspend, resume, and ranks."""

from __future__ import annotations

import sys
from typing import Any, Callable, Mapping

from ... import env
from ...launch.leaving import failure
from ...launch.rank import launchers
from ...log import warn_of_misspelt
from ...mailbox import connect, current, disconnect, requested, require_no_run
from ..exchange.exchange import Exchange
from ..kvstore import CompressingKVStore
from ..kvstore.horovod.backend import Horovod
from ..kvstore.local import Local
from ..kvstore.one_machine.backend import OneMachine
from ..kvstore.parameter_server.backend import ParameterServer
from ..state.suspension import Suspended, all_fit

_CONNECTED = {backend.type: backend for backend in (ParameterServer, Horovod, OneMachine)}
_MXNET_STORES = ("device", "nccl", "dist", "dist_async", "dist_device_sync", "dist_sync_device")
_default: Exchange | None = None
_suspended: Suspended | None = None
_was_connected = False  # whether `shutdown` has ended a connection
_goes_on = False  # whether the workers are the same as before `suspend`, with the same ranks
when_left: list[Callable[[], None]] = []
"""Functions of other modules, which are called when the process leaves its cluster."""
when_shut_down: list[Callable[[], None]] = []
"""Functions of other modules, which `shutdown` calls, but not `suspend`."""


def create_exchange(kvstore: None | str | CompressingKVStore = None) -> Exchange:
    """The backend with this name; by default that of the environment. A process connects once."""
    if isinstance(kvstore, CompressingKVStore):
        return kvstore.exchange
    if kvstore is None:
        kvstore = _of_environment()
    if not isinstance(kvstore, str):
        raise TypeError(
            "kvstore must be 'local', 'dist_sync', 'horovod' or a CompressingKVStore, "
            f"got {kvstore!r}"
        )
    if kvstore == "local":
        return Local()
    if kvstore == "dist_sync" and env.shares_machine():
        kvstore = "machine"
    if kvstore not in _CONNECTED:
        hint = ""
        if kvstore in _MXNET_STORES:
            hint = (
                ", which is MXNet's own: leave it out. DistributedTrainer sums over the contexts "
                "of a process by itself, and the environment says what connects the workers"
            )
        raise ValueError(
            f"kvstore must be 'local', 'dist_sync' or 'horovod', got '{kvstore}'{hint}"
        )
    exchange = _CONNECTED[kvstore].connection()
    if kvstore == "horovod" and not env.is_set("HOROVOD_RANK"):
        _require_all(exchange)
    return exchange


def _of_environment() -> str:
    if env.distributed():
        return "dist_sync"
    if env.under_horovod():
        return "horovod"
    if env.shares_machine():
        return "machine"
    worker = None if env.is_worker() else launchers.find()
    if worker is not None and worker.size > 1:
        raise env.ConfigurationError(
            f"{worker}, but MXNet's workers need servers or Horovod: start them with bpslaunch or "
            "horovodrun"
        )
    launchers.require_alone()
    return "local"


def _require_all(exchange: Exchange) -> None:
    """Raise ConfigurationError if Horovod does not know all workers that mpirun has started."""
    worker = launchers.find()
    if worker is not None and worker.size != exchange.num_workers:
        raise env.ConfigurationError(
            f"{worker}, but Horovod has {exchange.num_workers}: start the workers with horovodrun, "
            "or build Horovod with MPI"
        )


def init(lazy: bool = True, mailbox: str | None = None, **settings: Any) -> None:
    """Join the cluster that the environment describes; without one, be a cluster of one worker.

    With a mailbox, the process is a worker of a run without a cluster.

    From then on, an uncaught exception ends the process at once, so that the other workers learn of
    it. A second call does nothing, but may still name a mailbox.

    Parameters
    ----------
    lazy : bool
        Ignored. In BytePS, True makes workers connect to their servers at the first tensor. Here
        they always connect at once.
    mailbox : str, optional
        The URL of a run: "s3://bucket/run1", "gs://...", "az://...", "file:///folder" or a folder.
        Its workers exchange the rounds of `local_steps` there. Default: GLUON_GC_MAILBOX.
    **settings
        min_workers, grace, keep and worker_name; see `gluon_gc.mailbox.Run`. Workers are weighted
        by the batch sizes of `step`.

    Raises
    ------
    ConfigurationError
        A DMLC or BYTEPS variable is missing or wrong, or there is a cluster besides the mailbox.
    ConnectionError
        The scheduler cannot be reached.
    """
    global _default, _goes_on
    _connect_mailbox(mailbox, settings)
    if _default is not None:
        return
    exchange = _default = create_exchange()
    suspended, _goes_on = _suspended, all_fit(exchange, _suspended)
    if suspended is not None:
        exchange.when_declared = lambda names: suspended.give_back(exchange, names, _goes_on)
    if _default.local_rank == 0:  # once a machine: its workers have the same variables
        warn_of_misspelt()


def _connect_mailbox(url: str | None, settings: Mapping[str, Any]) -> None:
    """Become a worker of a run. Refuse a cluster before it is joined, which could take long."""
    if "samples_per_step" in settings:
        raise TypeError(
            "bps.init has no argument 'samples_per_step' with MXNet: workers are weighted by the "
            "batch sizes of DistributedTrainer.step"
        )
    url = requested(url, settings)
    if not url:
        return
    if _of_environment() != "local" or (_default is not None and _default.num_workers > 1):
        raise env.ConfigurationError(
            "a mailbox is for processes without a cluster, but the environment describes one: "
            "start workers without bpslaunch and horovodrun, and unset DMLC_ROLE"
        )
    connect(url, "mxnet", **settings)


def shutdown() -> None:
    """Finish all exchanges, and leave the cluster when all workers have called this.

    In a ``finally`` block that an exception has reached, and in an ``except`` block, the process
    leaves at once. The other workers then end, and report the exception. StopIteration is none.
    """
    global _suspended
    _suspended = None
    disconnect()
    for forget in when_shut_down:
        forget()
    exchange, error = _disconnect(), sys.exc_info()[1]
    why = "" if isinstance(error, StopIteration) else failure(error)
    if exchange is None:
        return
    for averaging in exchange.living_averagings():
        if averaging.reporter is not None:
            averaging.reporter.close()
    if why:
        exchange.abandon(why)
    else:
        exchange.close()


def suspend() -> None:
    """Leave the cluster when all workers have called this, to `resume` in another one.

    Each worker keeps its residuals and momentum, and the sums of those of all workers. An exchange
    of `DistributedTrainer.allreduce_grads` that no update has applied is taken back first.

    Raises
    ------
    RuntimeError
        It cannot be known whether such an exchange is applied; see `allreduce_grads`. Or the
        process has a mailbox.
    """
    global _suspended
    require_no_run("suspend")
    if _default is not None:
        for averaging in _default.living_averagings():
            averaging.leave_out_unapplied()
        _suspended = Suspended(_default, _suspended, _goes_on)
        _disconnect().close()


def _disconnect() -> Exchange | None:
    """Make the process one without a cluster. The result, if any, is still to be closed."""
    global _default, _was_connected
    exchange, _default = _default, None
    _was_connected = _was_connected or exchange is not None
    for forget in when_left:
        forget()
    return exchange


def resume(num_workers: int, num_servers: int, global_rank: int = -1) -> None:
    """Join a cluster of another size, with a new scheduler and new servers.

    Trainers use it from their next step, after they have broadcast the parameters from the root
    rank. If the workers are the same as before, with the same ranks and as many residuals, training
    continues bit for bit. Otherwise, with W workers before and W' now, each old worker gets
    1 / min(W, W') of the sum of all residuals and of all momenta, and those of new workers and
    servers start from zero. Workers of a machine that have one residual together count once.

    A new worker calls `init`, and creates its trainers with initialized parameters. The optimizer's
    states and its counts of updates are copied from the root rank.

    Parameters
    ----------
    num_workers, num_servers : int
        Replace DMLC_NUM_WORKER and DMLC_NUM_SERVER. A single machine's workers need no servers,
        unless BYTEPS_FORCE_DISTRIBUTED is set.
    global_rank : int
        Replaces DMLC_WORKER_ID; -1: unchanged.

    Raises
    ------
    RuntimeError
        The process has a mailbox.
    """
    require_no_run("resume")
    env.resize(num_workers, num_servers, None if global_rank == -1 else global_rank)
    init()


def goes_on() -> bool:
    return _goes_on


def default_exchange() -> Exchange:
    """The backend that `init` chose; RuntimeError before `init`, and after `shutdown`."""
    if _default is None:
        if _suspended is not None:
            raise RuntimeError("gluon_gc has been suspended; call bps.resume() first")
        if _was_connected:
            raise RuntimeError(
                "gluon_gc has been shut down; call bps.init() to go on. A cluster with servers "
                "ends with its workers: a new one needs a new scheduler and new servers"
            )
        raise RuntimeError("gluon_gc has not been initialized; call bps.init() first")
    return _default


def is_default(exchange: Exchange) -> bool:
    return exchange is _default


def rank() -> int:
    """This worker's number, from 0 to `size` - 1; from DMLC_WORKER_ID and BYTEPS_LOCAL_RANK."""
    return default_exchange().rank


def size() -> int:
    """The number of workers; with a mailbox, of those in the last round."""
    run = current()
    return default_exchange().num_workers if run is None else run.size


def local_rank() -> int:
    """This worker's number on its machine."""
    return default_exchange().local_rank


def local_size() -> int:
    """The number of workers on this machine."""
    return default_exchange().local_size
