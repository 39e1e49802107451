"""How the nodes of a cluster meet at the scheduler's port, before ps-lite takes it.

ps-lite must know how many worker processes there are, and only machines with workers know how many
of them they run. So every node tells the scheduler what it is (`joining`). The scheduler answers
when all have come, and leaves the port to ps-lite; the connections stay (`nodes`).
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
from ..version import __version__
from .leaving import ALONE
from .listening import listen
from .nodes import Node, Nodes
from .session import LINE_BYTES, OtherSecretError, Session, nonce, parsed, unsealed

_REMIND = 30  # seconds after which the scheduler says who is missing
_PATIENCE = 10  # seconds in which a node says what it is, once it is connected
_UNKNOWN = 64  # connections that have not; then the oldest is closed for a new one
_MOST = 65536  # workers and workers a machine; more are a stranger's
FRAMEWORKS = {"mxnet": "MXNet", "torch": "PyTorch"}
"""What workers train with, which is the same for all."""
ZEROMQ = b"\xff"
"""How ZeroMQ begins: MXNet's own nodes, and a scheduler once ps-lite has its port."""


def must_be_alike() -> Dict[str, Any]:
    """What all nodes must have alike."""
    return {"version of gluon_gc": __version__, **env.alike()}


class _Census(Nodes):
    """What the scheduler knows so far."""

    def __init__(self, cluster: Cluster, without_mxnet: str) -> None:
        super().__init__(cluster)
        self._without_mxnet = without_mxnet
        self.all_here = asyncio.Event()
        self._all_came = asyncio.Event()  # as many as are expected, whether they fit or not
        self._servers = 0
        self._first_worker = ""
        self._unknown: Dict[asyncio.StreamWriter, None] = {}  # in the order in which they came
        self._refused: Dict[str, None] = {}  # who was not let in, and why
        self.port = 0  # to which nodes come back
        self._waited = 0  # seconds since the last node came
        self._store: Optional[List[Any]] = None  # where worker 0 listens, for PyTorch's

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take in whoever connects; one who does not speak as our nodes do is shut out."""
        if len(self._unknown) >= _UNKNOWN:
            next(iter(self._unknown)).transport.abort()
        self._unknown[writer] = None
        node = None
        with suppress(OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError):
            node = await asyncio.wait_for(self._admitted(reader, writer), _PATIENCE)
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
        """Who it is; None or an error if it is none of ours, or has another secret."""
        host = writer.get_extra_info("peername")[0]
        first = await reader.read(1)
        if first == ZEROMQ:
            self._refuse(
                f"a node at {host} is not gluon_gc's but MXNet's own, and is not let in; start "
                "servers and the scheduler with bpslaunch, and workers with bps.init()"
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
            _check(hello)
            name = "a server" if hello["role"] == "server" else f"worker {hello['rank']}"
            self._refuse(f"{name} at {host} has {error} GLUON_GC_SECRET, and is not let in")
            return None
        _check(hello)
        if self.all_here.is_set() and restarts() is None:
            problem = (
                f"the cluster is complete: all of its {self.cluster.total_workers} workers and "
                f"{self.cluster.num_server} servers are there, and this node is too many or too "
                "late"
            )
            writer.write(session.seal({"problem": problem, "code": 1}))
        if self.all_here.is_set() or self._ends_to_restart:
            return None
        del self._unknown[writer]
        return self._enter(hello, session, reader, writer)

    def _refuse(self, who: str) -> None:
        if who not in self._refused and len(self._refused) < _UNKNOWN:
            self._refused[who] = None
            logger.warning("scheduler: %s", who)

    def _enter(self, hello: Dict[str, Any], session: Session, *streams: Any) -> Node:
        """Count a node in."""
        rank = hello["rank"]
        if hello["role"] == "server":
            rank, self._servers = self._servers, self._servers + 1
        name = f"{hello['role']} {rank}"
        logger.info("scheduler: %s has come", name)
        problem = self._difference(name, hello)
        while name in self.nodes:
            problem = problem or f"{name} came twice: every machine needs its own DMLC_WORKER_ID"
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
        for variable, value in must_be_alike().items():
            other = hello["alike"].get(variable)
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
                f"{self.cluster.local_size}: all machines must have as many workers"
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
        """The nodes that have not come yet; of each machine only the first, if none came at all."""
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
        """Whether who comes now is for the scheduler that comes after this one."""
        return bool(self.problem) and restarts() is not None

    async def remind(self) -> None:
        """Say from time to time who is missing, and give up in the end."""
        patience = env.get("GLUON_GC_CONNECT_TIMEOUT" if restarts() else "GLUON_GC_TIMEOUT")
        while not self.problem:
            await asyncio.sleep(1)
            self._waited += 1
            missing = ", ".join(self.missing())
            if patience and self._waited >= patience and restarts():
                self.fail(f"{missing} did not come back within {patience} s", ALONE)
            elif patience and self._waited >= patience:
                self.fail(f"{missing} did not come within {patience} s (GLUON_GC_TIMEOUT)")
            elif self._waited % _REMIND == 0:
                logger.warning("scheduler: waits for %s", missing)
                for who in self._refused:
                    logger.warning("scheduler: %s", who)

    async def aftermath(self) -> None:
        """Tell those who come late, as long as they look for it; not if the scheduler restarts."""
        if self._ends_to_restart or self._all_came.is_set():
            return
        patience, late = env.get("GLUON_GC_CONNECT_TIMEOUT"), ", ".join(self.missing())
        logger.warning(
            "scheduler: %s; stays for %d s, or until it has told %s", self.problem, patience, late
        )
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_came.wait(), patience)


def restarts() -> Optional[int]:
    """How often this node was restarted; None where nobody would."""
    return env.get("GLUON_GC_RESTARTS")


def _check(hello: Dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless a node says this."""
    rank, local_size = hello["rank"], hello["local_size"]
    if hello["role"] not in ("worker", "server") or not isinstance(hello["alike"], dict):
        raise ValueError
    if hello["role"] == "worker":
        if type(rank) is not int or type(local_size) is not int:
            raise TypeError
        _check_framework(hello["framework"], hello["store"])
        if not 0 <= rank < _MOST or not 0 < local_size < _MOST:
            raise ValueError


def _check_framework(framework: Any, store: Any) -> None:
    if framework not in FRAMEWORKS:
        raise ValueError
    if store is not None:
        host, port = store
        if type(host) is not str or type(port) is not int:
            raise TypeError


async def _hold(
    cluster: Cluster, without_mxnet: str, listener: socket.socket, held: Future
) -> None:
    census = _Census(cluster, without_mxnet)
    census.port = await census.door.open(cluster.root_uri)
    server = await asyncio.start_server(census.meet, sock=listener, limit=LINE_BYTES)
    reminder = asyncio.ensure_future(census.remind())
    watch = asyncio.ensure_future(census.watch())
    await census.all_here.wait()
    reminder.cancel()
    if census.framework == "mxnet":
        server.close()  # ps-lite takes the port
    held.set_result(census)
    await watch
    await asyncio.Event().wait()  # `census` ends this process


def hold(cluster: Cluster, without_mxnet: str = "") -> Nodes:
    """The scheduler's part: wait for all nodes.

    Ends the process if a node leaves before that, or if two do not fit together: they say they are
    the same, or differ in what must be alike. All who came hear of it.

    Parameters
    ----------
    without_mxnet : str
        Why this process cannot serve MXNet's workers; empty if it can.

    Returns
    -------
    Nodes
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
        target=lambda: asyncio.run(_hold(cluster, without_mxnet, listener, held)),
        name="gluon_gc census",
        daemon=True,
    ).start()
    return held.result()
