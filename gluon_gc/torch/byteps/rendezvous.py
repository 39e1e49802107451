"""Rendezvous: the workers of a job join at a torch.distributed store that all of them can reach.

torchrun provides a store. With other launchers, worker 0 has it. All workers know its address from
the environment (`launch.rank.launchers`), or from the scheduler if bpslaunch has started one.
"""

from __future__ import annotations

import itertools
import json
import socket
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, Sequence

import torch.distributed as dist

from ... import env
from ...env import Cluster, ConfigurationError
from ...launch.leaving import ending
from ...launch.rank import launchers
from ...launch.rank.launchers import WorkerRank
from ...launch.scheduler.lifeline import Lifeline
from ...launch.scheduler.lifeline import join as join_cluster
from ..transport import groups

_DEFAULT_TIMEOUT = timedelta(minutes=30)  # the default of torch.distributed
_GRACE = 2  # seconds that worker 0 waits longer, so that the others still reach its store


class Rendezvous(NamedTuple):
    """A store, and this worker's rank among the workers that use it."""

    store: dist.Store
    rank: int
    size: int


_joined: Rendezvous | None = None  # a process joins the others once
_lifeline: Lifeline | None = None  # in a cluster with a scheduler
_own_store: dist.TCPStore | None = None  # of worker 0 in such a cluster
_resumptions = itertools.count()  # numbers the calls of go_on, so that each has its own store keys


def join(timeout: timedelta | None) -> Rendezvous:
    """Join the other workers of the job that the environment describes, the first time.

    The store waits for `timeout` for a value from another worker.
    """
    global _joined
    if _joined is None:
        _joined = _join(timeout or _DEFAULT_TIMEOUT)
        _joined.store.set_timeout(timeout or _DEFAULT_TIMEOUT)
    return _joined


def leave() -> Rendezvous:
    """Return the rendezvous of the current workers, for a later `go_on`."""
    store = dist.distributed_c10d._get_default_store() if _joined is None else _joined.store
    return Rendezvous(store, dist.get_rank(), dist.get_world_size())


def go_on(former: Rendezvous) -> None:
    """Wait for the other workers of a former rendezvous. It is the result of the next `join`."""
    global _joined
    store = dist.PrefixStore(f"gluon_gc resume {next(_resumptions)}", former.store)
    seconds, claim = env.get("GLUON_GC_CONNECT_TIMEOUT"), json.dumps(former[1:])
    keys = [str(number) for number in range(1, former.size + 1)]
    try:
        store.set(str(store.add("claims", 1)), claim)
        with suppress(dist.DistStoreError):  # the missing workers are named below
            store.wait(keys, timedelta(seconds=seconds))
        claims = [json.loads(store.get(key)) for key in keys if store.check([key])]
        if len(claims) < former.size:
            store.set("given up", "")
        given_up = store.check(["given up"])
    except RuntimeError as error:
        raise ConnectionError(
            f"worker {former.rank} cannot meet the others again: {str(error).splitlines()[0]}; "
            "without torchrun, the process of the former worker 0 must still be running"
        ) from error
    _require_different(claims, former.size)
    missing = set(range(former.size)).difference(rank for rank, _ in claims)
    late = ", ".join(f"worker {rank}" for rank in sorted(missing)) or f"worker {former.rank}"
    if given_up:
        raise ConnectionError(
            f"{late} did not call resume within {seconds} s (GLUON_GC_CONNECT_TIMEOUT)"
        )
    _joined = former


def _require_different(claims: Sequence[tuple[int, int]], size: int) -> None:
    """Raise ValueError if workers resume with the same rank, or with different sizes."""
    ranks = [rank for rank, _ in claims]
    for rank, other_size in claims:
        if other_size != size:
            raise ValueError(
                f"all workers must call resume with the same num_workers, got {size} and "
                f"{other_size}"
            )
        if ranks.count(rank) > 1:
            raise ValueError(
                f"global_rank must differ between workers, but {ranks.count(rank)} workers called "
                f"resume with global_rank {rank}"
            )


def join_scheduler() -> None:
    """Report this PyTorch worker to the scheduler, if there is one."""
    global _lifeline, _own_store
    if _lifeline is not None or not _has_scheduler():
        return
    cluster, address = env.cluster(), None
    if cluster.rank == 0:
        host = env.get("DMLC_NODE_HOST") or _own_address(cluster)
        _own_store = _reach(host, 0, 0, cluster.total_workers)  # port 0: any free port
        address = host, _own_store.port
    _lifeline = join_cluster(cluster, env.get("GLUON_GC_CONNECT_TIMEOUT"), "torch", address)
    ending().set_backend(_lifeline)


def _has_scheduler() -> bool:
    under_torchrun = env.is_set("TORCHELASTIC_RUN_ID")
    return env.distributed() and not under_torchrun and env.get("DMLC_NUM_SERVER") > 0


def _join(timeout: timedelta) -> Rendezvous:
    worker = launchers.of_bpslaunch() or launchers.find()
    join_scheduler()
    if worker is None or worker.size == 1:
        launchers.require_alone()
        return Rendezvous(dist.HashStore(), 0, 1)
    env.export_local(worker.local_rank, worker.local_size)
    groups.TRANSPORT.prepare()
    if _lifeline is not None:
        store = _own_store or _reach(*_lifeline.store, worker.rank, worker.size)
    elif worker.launcher == "torchrun" and env.is_set("MASTER_ADDR") and env.is_set("MASTER_PORT"):
        return Rendezvous(*next(dist.rendezvous("env://", timeout=timeout)))
    else:
        store = _reach(*launchers.address(worker), worker.rank, worker.size)
    _wait_for_all(store, worker)
    return Rendezvous(store, worker.rank, worker.size)


def _reach(host: str, port: int, rank: int, size: int) -> dist.TCPStore:
    seconds = env.get("GLUON_GC_CONNECT_TIMEOUT")
    timeout = timedelta(seconds=seconds)
    try:
        return dist.TCPStore(host, port, size, rank == 0, timeout, wait_for_workers=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConnectionError(
            f"worker {rank} cannot reach worker 0's store at {host}:{port} within {seconds} s: "
            f"{reason}"
        ) from None


def _wait_for_all(store: dist.Store, worker: WorkerRank) -> None:
    seconds = env.get("GLUON_GC_CONNECT_TIMEOUT")
    grace = _GRACE if worker.rank == 0 else 0
    names = [f"worker {rank}" for rank in range(worker.size)]
    try:
        store.set(names[worker.rank], "")
        store.wait(names, timedelta(seconds=seconds + grace))
    except RuntimeError:
        raise ConnectionError(_why_not_all(store, names, seconds)) from None


def _why_not_all(store: dist.Store, names: list[str], seconds: int) -> str:
    try:
        missing = ", ".join(name for name in names if not store.check([name]))
    except RuntimeError:
        return "worker 0 has ended before all workers had come"
    return f"{missing} did not come within {seconds} s (GLUON_GC_CONNECT_TIMEOUT)"


def _own_address(cluster: Cluster) -> str:
    """Return this machine's address in the network that leads to the scheduler."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((cluster.root_uri, cluster.root_port))  # UDP: sends nothing
        except OSError as error:
            raise ConfigurationError(
                f"DMLC_PS_ROOT_URI must be an address, got {cluster.root_uri!r}: {error.strerror}"
            ) from None
        return str(probe.getsockname()[0])
