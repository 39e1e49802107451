"""Joins a cluster, as a worker or a server. `membership` is the scheduler's side."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from dataclasses import replace
from typing import Any, Dict, Optional, Tuple

from .. import env
from ..env import Cluster, ConfigurationError
from .connection import Connection, SilentError
from .hello import ZEROMQ, required_settings, restarts
from .leaving import ALONE, AloneError, NotNeededError
from .lifeline import Lifeline
from .session import LINE_BYTES, OtherSecretError, Session, nonce, plain, unsealed

_GREETING = 0.3  # seconds in which ZeroMQ sends its greeting
_PAUSE = 0.2  # seconds between two attempts to reach the scheduler


def join(
    cluster: Cluster,
    timeout: float,
    framework: str = "mxnet",
    store: Optional[Tuple[str, int]] = None,
) -> Lifeline:
    """Join the cluster, and wait until all nodes have joined.

    Parameters
    ----------
    cluster : Cluster
        This node's place, as the environment describes it.
    timeout : float
        Seconds in which the scheduler must be reached.
    framework : str
        The framework that a worker trains with: a key of `hello.FRAMEWORKS`.
    store : tuple of (str, int), optional
        The address and the port at which worker 0 of PyTorch listens. All nodes receive it.

    Returns
    -------
    Lifeline
        The connection to the scheduler. Its `cluster` has the number of workers on each machine,
        and the scheduler's IP address.

    Raises
    ------
    ConnectionError
        No scheduler was reached in time, it ended before all nodes had joined, its cluster is
        complete already, or it is MXNet's own scheduler.
    ConfigurationError
        The scheduler has another GLUON_GC_SECRET.
    RuntimeError
        The scheduler reported a problem of the cluster (`membership.admit`).
    AloneError
        bpslaunch has restarted this node, but the other nodes did not come back in time.
    NotNeededError
        This node is a server, but the workers trained with PyTorch, and have ended.
    """
    about = {"framework": framework, "store": store} if cluster.role == "worker" else {}
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _joined(cluster, about, timeout, deadline)
        except AloneError:
            raise
        except ConnectionError as error:
            if restarts() is None:
                raise
            if time.monotonic() >= deadline:
                raise AloneError(str(error)) from None
            time.sleep(_PAUSE)  # this was the scheduler from before the restart


def _joined(cluster: Cluster, about: Dict[str, Any], timeout: float, deadline: float) -> Lifeline:
    address = f"{cluster.root_uri}:{cluster.root_port}"
    hello = {**_hello(cluster), **about}
    link, session = _introduced(cluster, hello, address, timeout, deadline)
    gone = ConnectionError(f"the scheduler at {address} ended before all nodes had joined")
    try:
        link.sendall(session.seal(hello))
        connection = Connection(link, session)
    except OSError:
        raise gone from None
    try:
        answer = next(filter(None, connection.messages), None)
    except SilentError:
        raise ConnectionError(
            f"no heartbeat for {env.heartbeat_timeout()} s from the scheduler at {address}"
        ) from None
    if answer is None:
        raise gone
    if "problem" in answer:
        raise (AloneError if answer["code"] == ALONE else RuntimeError)(answer["problem"])
    cluster = replace(cluster, root_uri=connection.uri, local_size=answer["local_size"])
    connection.survives(answer["name"], answer["port"])
    lifeline = Lifeline(connection, answer["name"], cluster, answer["store"])
    if cluster.role == "server" and answer["framework"] == "torch":
        lifeline.wait_for_workers()  # an idle server stays, to restart together with all nodes
        lifeline.close()
        raise NotNeededError
    return lifeline


def _introduced(
    cluster: Cluster, hello: Dict[str, Any], address: str, timeout: float, deadline: float
) -> Tuple[socket.socket, Session]:
    """A connection to the scheduler, after both ends have proved that they share a secret."""
    own = nonce()
    link, text = _reached(cluster, address, timeout, deadline, own)
    if text.startswith(ZEROMQ):
        raise ConnectionError(
            f"the scheduler at {address} accepts no more nodes: either its cluster is complete, "
            "and this node is one too many, or too late; or it is MXNet's own scheduler, not "
            "gluon_gc's"
        )
    secret = env.get("GLUON_GC_SECRET")
    try:
        session = Session(secret, own, unsealed(text)["nonce"], is_node=True)
    except (ValueError, KeyError):
        raise ConnectionError(
            f"the program that listens at {address} is not gluon_gc's scheduler"
        ) from None
    try:
        session.open(text)
    except OtherSecretError as other:
        link.sendall(session.seal(hello))  # so that the scheduler can name this node
        has = "another" if secret and str(other) != "no" else "one" if secret else "none"
        raise ConfigurationError(
            "GLUON_GC_SECRET must be the same on all nodes: this one has "
            f"{has}, the scheduler at {address} {'none' if str(other) == 'no' else 'one'}"
        ) from None
    return link, session


def _reached(
    cluster: Cluster, address: str, timeout: float, deadline: float, own: str
) -> Tuple[socket.socket, bytes]:
    """Wait for the scheduler, connect, and send a nonce. Returns the connection and the answer."""
    while True:
        try:
            left = max(1.0, deadline - time.monotonic())
            link = socket.create_connection((cluster.root_uri, cluster.root_port), timeout=left)
            if not _greets(link):
                link.sendall(plain({"nonce": own}))
            return link, _first_line(link)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"no scheduler at {address} within {timeout:g} s ({error}); "
                    "check DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT and GLUON_GC_CONNECT_TIMEOUT"
                ) from None
            time.sleep(_PAUSE)


def _greets(link: socket.socket) -> bool:
    """Whether ps-lite still has the port, from before a restart. A line of ours would crash it."""
    return restarts() is not None and bool(select.select([link], [], [], _GREETING)[0])


def _first_line(link: socket.socket) -> bytes:
    """The first line of gluon_gc's scheduler, or the first bytes of ZeroMQ."""
    data = b""
    while not data.endswith(b"\n") and not data.startswith(ZEROMQ) and len(data) < LINE_BYTES:
        received = link.recv(LINE_BYTES)
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        data += received
    return data


def _hello(cluster: Cluster) -> Dict[str, Any]:
    hello = {name: getattr(cluster, name) for name in ("role", "rank", "local_size")}
    return {**hello, "settings": required_settings()}
