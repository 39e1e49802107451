"""A node's side of the cluster: it joins, and stays connected to the scheduler for the whole job.

If the connection ends or is silent, the process at its other end is gone. The scheduler then tells
all nodes which node is gone and why (`scheduler`), and they end. A node that ends normally says so
first.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from dataclasses import replace
from typing import Any, Sequence

from ... import env
from ...env import Cluster, ConfigurationError
from ...log import logger
from ..leaving import ALONE, AloneError, NotNeededError, die, left_early
from .connection import Connection, SilentError
from .protocol import (
    LINE_BYTES,
    ZEROMQ,
    OtherSecretError,
    Session,
    nonce,
    plain,
    required_settings,
    restarts,
    unsealed,
)
from .stalls import Progress

_GREETING = 0.3  # seconds in which ZeroMQ sends its greeting
_PAUSE = 0.2  # seconds between two attempts to reach the scheduler
_REASON_CHARACTERS = 1000  # limit of a reason, which may be any exception of a script


class Lifeline:
    """The end of a worker or a server. Its thread ends the process if the cluster fails."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        cluster: Cluster,
        store: Sequence[Any] | None = None,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.store = store
        self.progress = Progress()
        self._connection = connection
        self._reported = self.progress.now()
        self._exchanges = 0
        self._left: list[tuple[str, int]] = []
        self._all_left = threading.Event()
        self._over = threading.Event()
        self._closed = False
        os.register_at_fork(after_in_child=self._forget)  # or a child would keep it open
        self._thread = threading.Thread(target=self._listen, name="gluon_gc lifeline", daemon=True)
        self._thread.start()

    def next_exchange(self) -> None:
        """Count an exchange that needs all workers. Ends the process if a worker has left."""
        self._exchanges += 1
        self._check()

    def leave(self) -> None:
        """Wait until all workers leave."""
        self._connection.tell(left=self._exchanges)
        with self.progress.waiting():
            self._all_left.wait()

    def stay(self) -> None:
        """Wait until all workers call this or are done."""
        self._connection.tell(ready=True)
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Wait until all workers are done or call `stay`."""
        self._over.wait()

    def abandon(self, reason: str) -> None:
        """Leave at once. All other nodes end with this reason."""
        self._closed = True
        self._connection.tell(failed=reason[:_REASON_CHARACTERS])

    def close(self) -> None:
        """Tell the scheduler that this node is done, and wait for its answer."""
        self._closed = True
        self._connection.tell(done=True)
        self._thread.join(env.get("PS_HEARTBEAT_TIMEOUT"))
        self._connection.close()

    def _forget(self) -> None:
        self._closed = True
        self._connection.forget()

    def _check(self) -> None:
        for name, exchanges in self._left:
            if self._exchanges > exchanges:
                problem = left_early(name, exchanges, self.name)
                self._closed = True
                self._connection.tell(problem=problem)
                die(f"{self.name} ends: {problem}")

    def _listen(self) -> None:
        try:
            for message in self._connection.messages:
                if message is None:
                    self._report()
                else:
                    self._handle(message)
            self._die("the scheduler is gone")
        except SilentError:
            self._die(f"no heartbeat for {env.heartbeat_timeout()} s from the scheduler")
        except (ValueError, KeyError):
            self._die("the scheduler is gone")  # its message was incomplete

    def _handle(self, message: dict[str, Any]) -> None:
        if "problem" in message:
            self._die(message["problem"], message["code"])
        elif "warning" in message:
            logger.warning("%s: %s", self.name, message["warning"])
        elif "left" in message:
            self._left.append((message["left"], message["exchanges"]))
            self._check()
        elif "over" in message:
            self._over.set()
        else:
            self._all_left.set()

    def _report(self) -> None:
        progress = self.progress.now()
        if progress != self._reported and not self._closed:
            self._reported = progress
            self._connection.tell(**progress)

    def _die(self, problem: str, code: int = 1) -> None:
        if not self._closed:
            die(f"{self.name} ends: {problem}", code)


def join(
    cluster: Cluster,
    timeout: float,
    framework: str = "mxnet",
    store: tuple[str, int] | None = None,
) -> Lifeline:
    """Join the cluster as a worker or a server, and wait until all nodes have joined.

    The result's `cluster` has the number of workers on each machine, and the scheduler's IP
    address. `store` is the address at which worker 0 of PyTorch listens. All nodes receive it.

    ConnectionError: gluon_gc's scheduler is not reached in time, ends early, or accepts no more
    nodes. ConfigurationError: it has another secret. RuntimeError: it reports a problem of the
    cluster. AloneError: this node was restarted, but others did not come back. NotNeededError: this
    is a server, and the workers trained with PyTorch and have ended.
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


def _joined(cluster: Cluster, about: dict[str, Any], timeout: float, deadline: float) -> Lifeline:
    address = f"{cluster.root_uri}:{cluster.root_port}"
    hello = {name: getattr(cluster, name) for name in ("role", "rank", "local_size")}
    hello.update(settings=required_settings(), **about)
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
    cluster: Cluster, hello: dict[str, Any], address: str, timeout: float, deadline: float
) -> tuple[socket.socket, Session]:
    """A connection to the scheduler, after both ends have proved that they share a secret."""
    own = nonce()
    link, text = _reached(cluster, address, timeout, deadline, own)
    if text.startswith(ZEROMQ):
        raise ConnectionError(
            f"the scheduler at {address} accepts no more nodes: either its cluster is complete, "
            "and this node is one too many, or too late, or has left it; or it is MXNet's own "
            "scheduler, not gluon_gc's"
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
) -> tuple[socket.socket, bytes]:
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
