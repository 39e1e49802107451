"""Where the workers of a job meet: at a store of torch.distributed, which all of them can reach.

torchrun has a store. Under other launchers worker 0 has it, at an address that all know (`places`)
or that the scheduler tells them, where bpslaunch has started one.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import NamedTuple, Optional, Tuple

import torch.distributed as dist

from .. import env
from ..env import Cluster, ConfigurationError
from ..launch import places
from ..launch.joining import join
from ..launch.leaving import ending
from ..launch.lifeline import Lifeline
from ..launch.places import Place

_DEFAULT_TIMEOUT = timedelta(minutes=30)  # torch.distributed's


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
    listener : socket, optional
        Worker 0's, for its store.
    """

    def __init__(self, lifeline: Lifeline, listener: Optional[socket.socket]) -> None:
        self.lifeline, self.listener = lifeline, listener

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


def join_scheduler() -> None:
    """Tell the scheduler, where there is one, that this worker is PyTorch's and has come."""
    global _member
    if _member is not None or not _has_scheduler():
        return
    cluster = env.cluster()
    listener = _listener(cluster) if cluster.rank == 0 else None
    store = listener and listener.getsockname()
    lifeline = join(cluster, env.get("GLUON_GC_CONNECT_TIMEOUT"), "torch", store)
    _member = _Member(lifeline, listener)
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
    env.prepare_gloo()
    if _member is not None:
        return Meeting(_store_of(_member, place), place.rank, place.size)
    if place.launcher == "torchrun" and env.is_set("MASTER_ADDR") and env.is_set("MASTER_PORT"):
        return Meeting(*next(dist.rendezvous("env://", timeout=timeout)))
    return Meeting(_store_at(*places.address(place), place), place.rank, place.size)


def _store_at(host: str, port: int, place: Place, listener: Optional[int] = None) -> dist.Store:
    """The store that worker 0 has there, once all workers have come to it."""
    patience = env.get("GLUON_GC_CONNECT_TIMEOUT")
    try:
        store = dist.TCPStore(
            host,
            port,
            place.size,
            place.rank == 0,
            timedelta(seconds=patience),
            wait_for_workers=False,
            master_listen_fd=listener,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConnectionError(
            f"worker {place.rank} cannot meet worker 0 at {host}:{port} within {patience} s: "
            f"{reason}"
        ) from None
    _wait_for_all(store, place, patience)
    return store


def _store_of(member: _Member, place: Place) -> dist.Store:
    host, port = member.lifeline.store
    listener = None if member.listener is None else member.listener.detach()
    return _store_at(host, port, place, listener)


def _wait_for_all(store: dist.Store, place: Place, patience: int) -> None:
    names = [f"worker {rank}" for rank in range(place.size)]
    store.set(names[place.rank], "")
    try:
        store.wait(names, timedelta(seconds=patience))
    except RuntimeError:
        missing = ", ".join(name for name in names if not store.check([name]))
        raise ConnectionError(
            f"{missing} did not come within {patience} s (GLUON_GC_CONNECT_TIMEOUT)"
        ) from None


def _listener(cluster: Cluster) -> socket.socket:
    """Worker 0's socket, at the address by which it reaches the scheduler."""
    try:
        listener = socket.socket()
        listener.bind((env.get("DMLC_NODE_HOST") or _own_address(cluster), 0))
        listener.listen(128)
    except OSError as error:
        raise ConfigurationError(
            f"worker 0 cannot listen for the others ({error.strerror}); see DMLC_PS_ROOT_URI and "
            "DMLC_NODE_HOST"
        ) from None
    return listener


def _own_address(cluster: Cluster) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((cluster.root_uri, cluster.root_port))  # which sends nothing
        address: Tuple[str, int] = probe.getsockname()
    return address[0]
