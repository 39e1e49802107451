"""How the nodes of a cluster meet at the scheduler's port, before ps-lite takes it.

ps-lite must know how many worker processes there are, and only machines with workers know how many
of them they run. So every node tells the scheduler what it is, in a line of JSON. The scheduler
answers when all have come, and leaves the port to ps-lite; the connections stay (`lifeline`).
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Dict, List, Optional, Set

from .. import env
from ..env import Cluster, ConfigurationError
from ..log import logger
from ..version import __version__
from .lifeline import LINE_BYTES, Lifeline, Lifelines, keep_alive, line

_REMIND = 30  # seconds after which the scheduler says who is missing
_PATIENCE = 10  # seconds for a node's line, once it is connected
_ZEROMQ = b"\xff"  # how ZeroMQ begins, and so MXNet's own nodes


def _must_be_alike() -> Dict[str, Any]:
    return {"version of gluon_gc": __version__, **env.alike()}


class _Census(Lifelines):
    """What the scheduler knows so far."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.all_here = asyncio.Event()
        self._all_came = asyncio.Event()  # as many as are expected, whether they fit or not
        self._servers = 0
        self._first_worker = ""
        self._strangers: Set[str] = set()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take in whoever connects; one who does not speak as our nodes do is shut out."""
        hello = await self._hello(reader, writer)
        if hello is None:
            writer.close()
            return
        keep_alive(writer.get_extra_info("socket"))
        name = self._enter(hello, writer)
        if self.problem:
            writer.write(line({"problem": self.problem}))
        await self.attend(name, reader)

    async def _hello(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Optional[Dict[str, Any]]:
        try:
            first = await asyncio.wait_for(reader.read(1), _PATIENCE)
            if first == _ZEROMQ:
                self._warn_of(writer.get_extra_info("peername")[0])
            if first != b"{":
                return None
            hello = json.loads(first + await asyncio.wait_for(reader.readline(), _PATIENCE))
            _check(hello)
            return hello
        except (asyncio.TimeoutError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _warn_of(self, host: str) -> None:
        if host not in self._strangers:
            self._strangers.add(host)
            logger.warning("scheduler: %s", _stranger(host))

    def _enter(self, hello: Dict[str, Any], writer: asyncio.StreamWriter) -> str:
        """Count a node in; what it is called."""
        rank = hello["rank"]
        if hello["role"] == "server":
            rank, self._servers = self._servers, self._servers + 1
        name = f"{hello['role']} {rank}"
        logger.info("scheduler: %s has come", name)
        problem = self._difference(name, hello)
        while name in self.writers:
            problem = problem or f"{name} came twice: every machine needs its own DMLC_WORKER_ID"
            name = f"another {name}"
        self.writers[name] = writer
        if len(self.writers) >= self.cluster.num_server + self.cluster.total_workers:
            self._all_came.set()
        if self._servers > self.cluster.num_server:
            problem = f"there are more servers than DMLC_NUM_SERVER, {self.cluster.num_server}"
        if problem:
            self.fail(f"the cluster does not fit together: {problem}")
        elif not self.missing() and not self.problem:
            self._answer()
        return name

    def _difference(self, name: str, hello: Dict[str, Any]) -> str:
        for variable, value in _must_be_alike().items():
            other = hello["alike"].get(variable)
            if other != value:
                return f"{name} has {variable} {other}, but the scheduler has {value}"
        if hello["role"] != "worker":
            return ""
        size = hello["local_size"]
        if not self._first_worker:
            self._first_worker = name
            self.cluster = replace(self.cluster, local_size=size)
        if size != self.cluster.local_size:
            return (
                f"{name} has BYTEPS_LOCAL_SIZE {size}, but {self._first_worker} has "
                f"{self.cluster.local_size}: all machines must have as many workers"
            )
        return ""

    def missing(self) -> List[str]:
        """The nodes that have not come yet; of each machine only the first, if none came at all."""
        expected = [f"server {i}" for i in range(self.cluster.num_server)]
        expected += [f"worker {i}" for i in range(self.cluster.total_workers)]
        return [name for name in expected if name not in self.writers]

    def _answer(self) -> None:
        self.all_here.set()
        for name, writer in self.writers.items():
            writer.write(line({"name": name, "local_size": self.cluster.local_size}))

    async def remind(self) -> None:
        """Say from time to time who is missing."""
        while True:
            await asyncio.sleep(_REMIND)
            logger.warning("scheduler: waits for %s", ", ".join(self.missing()))
            for host in self._strangers:
                logger.warning("scheduler: %s", _stranger(host))

    async def aftermath(self) -> None:
        """Tell those who come late, as long as they look for the scheduler."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_came.wait(), env.get("GLUON_GC_CONNECT_TIMEOUT"))


def _check(hello: Dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless a node says this."""
    if hello["role"] not in ("worker", "server") or not isinstance(hello["alike"], dict):
        raise ValueError
    if hello["role"] == "worker":
        int(hello["rank"]), int(hello["local_size"])


def _stranger(host: str) -> str:
    return (
        f"a node at {host} is not gluon_gc's but MXNet's own, and is not let in; start servers and "
        "the scheduler with bpslaunch, and workers with bps.init()"
    )


async def _hold(cluster: Cluster, listener: socket.socket, held: Future) -> None:
    census = _Census(cluster)
    server = await asyncio.start_server(census.meet, sock=listener, limit=LINE_BYTES)
    reminder = asyncio.ensure_future(census.remind())
    await census.all_here.wait()
    reminder.cancel()
    server.close()
    held.set_result(census)
    await asyncio.Event().wait()  # the connections are listened to as long as the process lives


def hold(cluster: Cluster) -> Lifelines:
    """The scheduler's part: wait for all nodes.

    Ends the process if a node leaves before that, or if two do not fit together: they say they are
    the same, or differ in what must be alike. All who came hear of it.

    Returns
    -------
    Lifelines
        The connections to the nodes. Its `cluster` has the workers a machine, and the number of
        this address.

    Raises
    ------
    ConfigurationError
        It cannot listen at its address.
    """
    held: Future = Future()
    listener = listen(cluster.root_uri, cluster.root_port)
    cluster = replace(cluster, root_uri=listener.getsockname()[0])  # ps-lite takes no host name
    threading.Thread(
        target=lambda: asyncio.run(_hold(cluster, listener, held)),
        name="gluon_gc census",
        daemon=True,
    ).start()
    return held.result()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, and at no other address of this machine.

    Raises
    ------
    ConfigurationError
        It is not an address, not this machine's, or taken.
    """
    try:
        address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    except socket.gaierror as error:
        raise ConfigurationError(
            f"DMLC_PS_ROOT_URI must be an address, got {host!r}: {error.strerror}"
        ) from None
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_why_not(error, host, port)) from None
    return listener


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"DMLC_PS_ROOT_URI must be an address of the scheduler's own machine, got {host!r}"
    return f"cannot listen on port {port} of {host}: {error.strerror}"


def join(cluster: Cluster, timeout: float) -> Lifeline:
    """Any other node's part: tell the scheduler, and wait until all are there.

    Parameters
    ----------
    timeout : float
        Seconds within which the scheduler must be reached.

    Returns
    -------
    Lifeline
        The connection to the scheduler. Its `cluster` has the workers a machine, and the number of
        the scheduler's address.

    Raises
    ------
    ConnectionError
        There is no scheduler in time, it leaves before all are there, or is MXNet's own.
    RuntimeError
        What `hold` finds.
    """
    hello = {name: getattr(cluster, name) for name in ("role", "rank", "local_size")}
    hello["alike"] = _must_be_alike()
    address = f"{cluster.root_uri}:{cluster.root_port}"
    link = _connected(cluster.root_uri, cluster.root_port, timeout)
    keep_alive(link)
    link.sendall(line(hello))
    text = _line_from(link)
    if text.startswith(_ZEROMQ):
        raise ConnectionError(
            f"the scheduler at {address} is not gluon_gc's but MXNet's own; "
            "start it with DMLC_ROLE=scheduler bpslaunch"
        )
    if not text:
        raise ConnectionError(f"the scheduler at {address} left before all nodes were there")
    answer = json.loads(text)
    if "problem" in answer:
        raise RuntimeError(answer["problem"])
    uri = link.getpeername()[0]
    cluster = replace(cluster, root_uri=uri, local_size=answer["local_size"])
    return Lifeline(link, answer["name"], cluster)


def _line_from(link: socket.socket) -> bytes:
    """A line, or only its first byte where that is ZeroMQ's; nothing if the connection ends."""
    try:
        with link.makefile("rb", buffering=0) as lines:
            first = lines.read(1)
            return first if first == _ZEROMQ else first + lines.readline()
    except OSError:
        return b""


def _connected(host: str, port: int, timeout: float) -> socket.socket:
    """A connection to the scheduler, which may start later."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            link = socket.create_connection((host, port), timeout=max(1.0, timeout))
            link.settimeout(None)
            return link
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"no scheduler at {host}:{port} within {timeout:g} s ({error}); "
                    "see DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT and GLUON_GC_CONNECT_TIMEOUT"
                ) from None
            time.sleep(0.2)
