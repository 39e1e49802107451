"""Where the workers of a job meet: at a store of torch.distributed, which all of them can reach.

torchrun has a store. Under other launchers worker 0 has it, at an address that all know (`places`)
or that the scheduler tells them, where bpslaunch has started one.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import List, NamedTuple, Optional

import torch.distributed as dist

from .. import env
from ..env import Cluster, ConfigurationError
from ..launch import places
from ..launch.joining import join
from ..launch.leaving import ending
from ..launch.lifeline import Lifeline
from ..launch.places import Place
from . import groups

_DEFAULT_TIMEOUT = timedelta(minutes=30)  # torch.distributed's
_GRACE = 2  # seconds that worker 0 has its store for longer, so that all can say who is missing


class Meeting(NamedTuple):
    """The store, and this worker's place among those that meet there."""

    store: dist.Store
    rank: int
    size: int


class _Member:
    """This worker in a cluster with a scheduler, which ends all nodes when one fails.

    Parameters
    ----------
    lifeline : Lifeline
    store : TCPStore, optional
        Worker 0's, which all others reach.
    """

    def __init__(self, lifeline: Lifeline, store: Optional[dist.TCPStore]) -> None:
        self.lifeline, self.store = lifeline, store

    def close(self) -> None:
        """Leave; the scheduler ends when all have left."""
        self.lifeline.close()

    def abandon(self, why: str) -> None:
        """Leave at once; all others end, and say why."""
        self.lifeline.abandon(why)
        ending().abandoned()


_meeting: Optional[Meeting] = None  # of this process, which meets the others once
_member: Optional[_Member] = None


def meet(timeout: Optional[timedelta]) -> Meeting:
    """Meet the other workers of the job that the environment describes; alone, have a store.

    Parameters
    ----------
    timeout : timedelta, optional
        How long the store may wait for what another worker writes to it.

    Raises
    ------
    ConfigurationError
        The environment says that there are other workers, but not enough to find them.
    ConnectionError
        They have not come within GLUON_GC_CONNECT_TIMEOUT.
    """
    global _meeting
    if _meeting is None:
        _meeting = _met(timeout or _DEFAULT_TIMEOUT)
        _meeting.store.set_timeout(timeout or _DEFAULT_TIMEOUT)
    return _meeting


def leave() -> Meeting:
    """The place where all workers have met, for `go_on`."""
    store = dist.distributed_c10d._get_default_store() if _meeting is None else _meeting.store
    return Meeting(store, dist.get_rank(), dist.get_world_size())


def go_on(meeting: Meeting) -> None:
    """Have `meet` return this."""
    global _meeting
    _meeting = meeting


def join_scheduler() -> None:
    """Tell the scheduler, where there is one, that this worker is PyTorch's and has come."""
    global _member
    if _member is not None or not _has_scheduler():
        return
    cluster = env.cluster()
    store = address = None
    if cluster.rank == 0:
        host = env.get("DMLC_NODE_HOST") or _own_address(cluster)
        store = _reach(host, 0, 0, cluster.total_workers)  # which picks a port
        address = host, store.port
    lifeline = join(cluster, env.get("GLUON_GC_CONNECT_TIMEOUT"), "torch", address)
    _member = _Member(lifeline, store)
    ending().concerns(_member)


def _has_scheduler() -> bool:
    of_torchrun = env.is_set("TORCHELASTIC_RUN_ID")
    return env.distributed() and not of_torchrun and env.get("DMLC_NUM_SERVER") > 0


def _met(timeout: timedelta) -> Meeting:
    place = places.of_bpslaunch() or places.find()
    join_scheduler()
    if place is None or place.size == 1:
        places.require_alone()
        return Meeting(dist.HashStore(), 0, 1)
    env.export_local(place.local_rank, place.local_size)
    groups.TRANSPORT.prepare()
    if _member is not None:
        store = _member.store or _reach(*_member.lifeline.store, place.rank, place.size)
    elif place.launcher == "torchrun" and env.is_set("MASTER_ADDR") and env.is_set("MASTER_PORT"):
        return Meeting(*next(dist.rendezvous("env://", timeout=timeout)))
    else:
        store = _reach(*places.address(place), place.rank, place.size)
    _wait_for_all(store, place)
    return Meeting(store, place.rank, place.size)


def _reach(host: str, port: int, rank: int, size: int) -> dist.TCPStore:
    """The store that worker 0 has there, or makes there."""
    patience = env.get("GLUON_GC_CONNECT_TIMEOUT")
    timeout = timedelta(seconds=patience)
    try:
        return dist.TCPStore(host, port, size, rank == 0, timeout, wait_for_workers=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConnectionError(
            f"worker {rank} cannot reach worker 0's store at {host}:{port} within {patience} s: "
            f"{reason}"
        ) from None


def _wait_for_all(store: dist.Store, place: Place) -> None:
    patience = env.get("GLUON_GC_CONNECT_TIMEOUT")
    grace = _GRACE if place.rank == 0 else 0
    names = [f"worker {rank}" for rank in range(place.size)]
    try:
        store.set(names[place.rank], "")
        store.wait(names, timedelta(seconds=patience + grace))
    except RuntimeError:
        raise ConnectionError(_why_not_all(store, names, patience)) from None


def _why_not_all(store: dist.Store, names: List[str], patience: int) -> str:
    try:
        missing = ", ".join(name for name in names if not store.check([name]))
    except RuntimeError:
        return "worker 0 has ended before all workers had come"
    return f"{missing} did not come within {patience} s (GLUON_GC_CONNECT_TIMEOUT)"


def _own_address(cluster: Cluster) -> str:
    """This machine's address in the network by which it reaches the scheduler."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((cluster.root_uri, cluster.root_port))  # which sends nothing
        except OSError as error:
            raise ConfigurationError(
                f"DMLC_PS_ROOT_URI must be an address, got {cluster.root_uri!r}: {error.strerror}"
            ) from None
        return str(probe.getsockname()[0])
