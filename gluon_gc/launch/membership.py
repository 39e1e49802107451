"""Admits the nodes of a cluster at the scheduler's port, before ps-lite uses the port.

ps-lite needs the number of worker processes, and only a machine knows how many it runs. So every
node first sends the scheduler a hello (`joining`). The scheduler answers after all nodes have
joined, and releases the port for ps-lite. The connections stay open (`nodes`).
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Dict, List, Optional

from .. import env
from ..env import Cluster
from ..log import logger
from .hello import FRAMEWORKS, ZEROMQ, check, required_settings, restarts
from .leaving import ALONE
from .listening import listen
from .nodes import Node, Nodes
from .session import LINE_BYTES, OtherSecretError, Session, nonce, parsed, unsealed

_REMINDER_SECONDS = 30  # between two warnings that name the missing nodes
_HELLO_SECONDS = 10  # for the hello of a node that has connected
_UNKNOWN = 64  # connections without a hello, at most: a new one then replaces the oldest


class _Members(Nodes):
    """The nodes that have joined so far."""

    def __init__(self, cluster: Cluster, without_mxnet: str) -> None:
        super().__init__(cluster)
        self._without_mxnet = without_mxnet
        self.all_here = asyncio.Event()
        self._all_came = asyncio.Event()  # the expected number has come, whether they agree or not
        self._servers = 0
        self._first_worker = ""
        self._unknown: Dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._refused: Dict[str, None] = {}  # messages about nodes that were not admitted
        self.port = 0  # the port at which nodes reconnect
        self._waited = 0  # seconds since the last node came
        self._store: Optional[List[Any]] = None  # the address of PyTorch's store on worker 0

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Admit a node that has connected, and serve it. Close the connection of a stranger."""
        if len(self._unknown) >= _UNKNOWN:
            next(iter(self._unknown)).transport.abort()
        self._unknown[writer] = None
        node = None
        with suppress(OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError):
            node = await asyncio.wait_for(self._admitted(reader, writer), _HELLO_SECONDS)
        self._unknown.pop(writer, None)
        if node is None:
            writer.close()
            return
        if self.problem:
            node.tell(problem=self.problem, code=1)
        await self.attend(node)

    async def _admitted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Optional[Node]:
        """The node of a new connection. None or an error means that it must be refused."""
        host = writer.get_extra_info("peername")[0]
        first = await reader.read(1)
        if first == ZEROMQ:
            self._refuse(
                f"a node at {host} runs MXNet's own parameter server without gluon_gc, and is not "
                "let in; start servers and the scheduler with bpslaunch, and workers with "
                "bps.init()"
            )
        if first != b"{":
            return None
        theirs, ours = parsed(first + await reader.readline())["nonce"], nonce()
        if len(theirs) != len(ours):
            return None
        session = Session(env.get("GLUON_GC_SECRET"), theirs, ours, is_node=False)
        writer.write(session.seal({"nonce": ours}))
        line = await reader.readline()
        try:
            hello = session.open(line)
        except OtherSecretError as error:
            hello = unsealed(line)
            check(hello)
            name = "a server" if hello["role"] == "server" else f"worker {hello['rank']}"
            self._refuse(f"{name} at {host} has {error} GLUON_GC_SECRET, and is not let in")
            return None
        check(hello)
        if self.all_here.is_set() and restarts() is None:
            problem = (
                f"the cluster is complete: all of its {self.cluster.total_workers} workers and "
                f"{self.cluster.num_server} servers have joined, so this node is one too many, or "
                "too late"
            )
            writer.write(session.seal({"problem": problem, "code": 1}))
        if self.all_here.is_set() or self._ends_to_restart:
            return None
        del self._unknown[writer]
        return self._enter(hello, session, reader, writer)

    def _refuse(self, message: str) -> None:
        """Log why a node is refused, once for each message."""
        if message not in self._refused and len(self._refused) < _UNKNOWN:
            self._refused[message] = None
            logger.warning("scheduler: %s", message)

    def _enter(self, hello: Dict[str, Any], session: Session, *streams: Any) -> Node:
        """Add a node. It may complete the cluster, or end it by a setting that differs."""
        rank = hello["rank"]
        if hello["role"] == "server":
            rank, self._servers = self._servers, self._servers + 1
        name = f"{hello['role']} {rank}"
        logger.info("scheduler: %s has come", name)
        problem = self._difference(name, hello)
        while name in self.nodes:
            problem = problem or (
                f"{name} came twice: every machine needs its own DMLC_WORKER_ID, or global_rank of "
                "bps.resume"
            )
            name = f"another {name}"
        node = self.nodes[name] = Node(name, session, *streams)
        self._waited = 0
        if len(self.nodes) >= self.cluster.num_server + self.cluster.total_workers:
            self._all_came.set()
        if self._servers > self.cluster.num_server:
            problem = f"there are more servers than DMLC_NUM_SERVER, {self.cluster.num_server}"
        if problem:
            self.fail(f"the cluster does not fit together: {problem}")
        elif not self.missing() and not self.problem:
            self._answer()
        return node

    def _difference(self, name: str, hello: Dict[str, Any]) -> str:
        for variable, value in required_settings().items():
            other = hello["settings"].get(variable)
            if other != value:
                return f"{name} has {variable} {other}, but the scheduler has {value}"
        return self._difference_of_worker(name, hello) if hello["role"] == "worker" else ""

    def _difference_of_worker(self, name: str, hello: Dict[str, Any]) -> str:
        size, framework = hello["local_size"], hello["framework"]
        if not self._first_worker:
            self._first_worker, self.framework = name, framework
            self.cluster = replace(self.cluster, local_size=size)
        if hello["rank"] == 0:
            self._store = hello["store"]
        if size != self.cluster.local_size:
            return (
                f"{name} has BYTEPS_LOCAL_SIZE {size}, but {self._first_worker} has "
                f"{self.cluster.local_size}: all machines must have the same number of workers"
            )
        if framework != self.framework:
            return (
                f"{name} trains with {FRAMEWORKS[framework]}, but {self._first_worker} with "
                f"{FRAMEWORKS[self.framework]}"
            )
        if self._without_mxnet and framework == "mxnet":
            return f"{name} trains with MXNet, but the scheduler lacks it: {self._without_mxnet}"
        return ""

    def missing(self) -> List[str]:
        """The names of the nodes that have not joined yet.

        Until the first worker joins, each machine counts as one worker.
        """
        expected = [f"server {i}" for i in range(self.cluster.num_server)]
        expected += [f"worker {i}" for i in range(self.cluster.total_workers)]
        return [name for name in expected if name not in self.nodes]

    def _answer(self) -> None:
        self.all_here.set()
        for writer in self._unknown:
            writer.transport.abort()
        self.stalls.expect([name for name in self.nodes if self.nodes[name].is_worker])
        for node in self.nodes.values():
            node.comes_back = True
            node.tell(
                name=node.name,
                local_size=self.cluster.local_size,
                port=self.port,
                framework=self.framework,
                store=self._store,
            )

    @property
    def _ends_to_restart(self) -> bool:
        """Whether this scheduler ends and restarts, so that new nodes must wait for the next."""
        return bool(self.problem) and restarts() is not None

    async def remind(self) -> None:
        """Warn of missing nodes at regular intervals, and give up after the time-out."""
        timeout = env.get("GLUON_GC_CONNECT_TIMEOUT" if restarts() else "GLUON_GC_TIMEOUT")
        while not self.problem:
            await asyncio.sleep(1)
            self._waited += 1
            missing = ", ".join(self.missing())
            if timeout and self._waited >= timeout and restarts():
                self.fail(f"{missing} did not come back within {timeout} s", ALONE)
            elif timeout and self._waited >= timeout:
                self.fail(f"{missing} did not come within {timeout} s (GLUON_GC_TIMEOUT)")
            elif self._waited % _REMINDER_SECONDS == 0:
                logger.warning("scheduler: waits for %s", missing)
                for message in self._refused:
                    logger.warning("scheduler: %s", message)

    async def aftermath(self) -> None:
        """Wait for late nodes and tell them the problem, unless the scheduler restarts."""
        if self._ends_to_restart or self._all_came.is_set():
            return
        timeout, late = env.get("GLUON_GC_CONNECT_TIMEOUT"), ", ".join(self.missing())
        logger.warning("scheduler: %s; waits up to %d s to tell %s", self.problem, timeout, late)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_came.wait(), timeout)


async def _admit_all(
    cluster: Cluster, without_mxnet: str, listener: socket.socket, admitted: Future
) -> None:
    members = _Members(cluster, without_mxnet)
    members.port = await members.door.open(cluster.root_uri)
    server = await asyncio.start_server(members.meet, sock=listener, limit=LINE_BYTES)
    reminder = asyncio.ensure_future(members.remind())
    watch = asyncio.ensure_future(members.watch())
    await members.all_here.wait()
    reminder.cancel()
    if members.framework == "mxnet":
        server.close()  # ps-lite needs the port
    admitted.set_result(members)
    await watch
    await asyncio.Event().wait()  # `members` ends this process


def admit(cluster: Cluster, without_mxnet: str = "") -> Nodes:
    """Listen as the scheduler, and wait until all nodes have joined.

    This process ends if a node leaves early, if two nodes claim the same rank, or if nodes differ
    in a value that must be the same on all. All nodes get the reason, and end too.

    Parameters
    ----------
    cluster : Cluster
    without_mxnet : str
        The reason why this process cannot serve MXNet's workers; empty if it can.

    Returns
    -------
    Nodes
        The connections to the nodes. Its `cluster` has the number of workers on each machine, and
        the scheduler's IP address.

    Raises
    ------
    ConfigurationError
        The scheduler cannot listen at its address.
    """
    admitted: Future = Future()
    listener = listen(cluster.root_uri, cluster.root_port)
    cluster = replace(cluster, root_uri=listener.getsockname()[0])  # ps-lite takes no host name
    threading.Thread(
        target=lambda: asyncio.run(_admit_all(cluster, without_mxnet, listener, admitted)),
        name="gluon_gc membership",
        daemon=True,
    ).start()
    return admitted.result()
