"""The scheduler: it admits the nodes of a cluster, stays connected to them, and ends them together.

ps-lite needs the number of worker processes, and only a machine knows how many it runs. So every
node first sends the scheduler a hello (`lifeline`). The scheduler answers after all nodes have
joined, and releases its port for ps-lite. The connections stay open.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Tuple

from ... import env
from ...env import Cluster
from ...log import logger
from ..leaving import ALONE, die
from . import ps_lite
from .listening import listen
from .protocol import (
    FRAMEWORKS,
    LINE_BYTES,
    ZEROMQ,
    OtherSecretError,
    Session,
    check_hello,
    nonce,
    parsed,
    plain,
    required_settings,
    restarts,
    unsealed,
)
from .reconnection import ReturnPort
from .stalls import Stalls

_REMINDER_SECONDS = 30  # between two warnings that name the missing nodes
_HELLO_SECONDS = 10  # for the hello of a node that has connected
_UNKNOWN = 64  # connections without a hello, at most: a new one then replaces the oldest
_HEAD_START = 0.2  # seconds before other nodes end, so that launchers see the failed node first
_TOGETHER = 2  # heartbeat intervals within which one fault silences all nodes that it cuts off
_TICK = 1.0  # seconds between two checks without heartbeats
_LAST_SECONDS = 1.0  # for reading what a process has sent before its end
_Return = Tuple[asyncio.StreamReader, asyncio.StreamWriter, int]


class Node:
    def __init__(
        self,
        name: str,
        session: Session,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.name, self._session = name, session
        self.machine = writer.get_extra_info("peername")[0]
        self.where = f"{name} at {self.machine}"
        self.reader, self.writer = reader, writer
        self.silent = 0  # heartbeat intervals since the last message
        self.done = False  # it has ended without an error
        self.comes_back = False  # it can reconnect after the network has reset its connection
        # New connections of the node; None: it has ended, and will not reconnect.
        self._returns: asyncio.Queue[_Return | None] = asyncio.Queue()
        self._life: asyncio.Future | None = None

    @property
    def is_worker(self) -> bool:
        return self.name.startswith("worker")

    def tell(self, **message: Any) -> None:
        if not self.done:
            self.writer.write(self._session.seal(message))

    def beat(self) -> None:
        """Send a heartbeat, and count an interval in which the node was silent."""
        self.silent += 1
        if not self.writer.is_closing():
            self.writer.write(b"\n")

    async def next(self) -> dict[str, Any]:
        """The next message. Raises EOFError at the end, ValueError if the line is not valid."""
        while True:
            was_reset = False
            try:
                line = await self.reader.readline()
            except OSError:
                line, was_reset = b"", True
            if not line.endswith(b"\n"):
                await self._return(was_reset)
                continue
            self.silent = 0
            if line != b"\n":
                return self._session.open(line)

    def session(self) -> Session:
        """The session, for a node that reconnects. Raises KeyError while it must not reconnect."""
        if not self.comes_back:
            raise KeyError
        return self._session

    def reconnect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: int
    ) -> None:
        """Take over a new connection of a node that has received this many lines so far."""
        if self.done:
            writer.write(plain({"received": self._session.received}))
            writer.close()
        else:
            self._returns.put_nowait((reader, writer, received))
            self.writer.transport.abort()  # the scheduler may not have noticed the reset

    def watch_life(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use this connection from now on to detect the end of the node's process."""
        if self._life is not None:
            self._life.cancel()
        self._life = asyncio.ensure_future(self._outlive(reader, writer))

    async def _outlive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # a reset does not mean that the process has ended
            await reader.read()
            self._returns.put_nowait(None)
            await asyncio.sleep(_LAST_SECONDS)  # its last message, which says why, may not be read
            self.writer.transport.abort()
        writer.close()

    async def _return(self, was_reset: bool) -> None:
        if self._returns.empty() and not (was_reset and self.comes_back):
            raise EOFError
        returned = await asyncio.wait_for(self._returns.get(), env.get("PS_HEARTBEAT_TIMEOUT"))
        if returned is None:
            raise EOFError
        self.reader, self.writer, received = returned
        lost = self._session.after(received)
        self.writer.write(plain({"received": self._session.received}) + lost)


class Scheduler:
    """The nodes of a cluster, in an asyncio loop. Other threads call only the last two methods."""

    def __init__(self, cluster: Cluster, without_mxnet: str) -> None:
        self.cluster = cluster
        self.framework = ""  # of the workers; empty until the first one joins
        self.nodes: dict[str, Node] = {}
        self.all_here = asyncio.Event()
        self.return_port = ReturnPort(self.nodes)
        self._without_mxnet = without_mxnet  # why this process cannot serve MXNet's workers
        self._problem, self._code = "", 0  # why the cluster ends, and the exit code
        self._all_came = asyncio.Event()  # the expected number has come, whether they agree or not
        self._servers = 0
        self._first_worker = ""
        self._unknown: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._refused: dict[str, None] = {}  # messages about nodes that were not admitted
        self._waited = 0  # seconds since the last node came
        self._store: list[Any] | None = None  # the address of PyTorch's store on worker 0
        self._stalls = Stalls(
            lambda name: self.nodes[name].where if name in self.nodes else name,
            env.get("GLUON_GC_STALL_SECONDS"),
            env.get("GLUON_GC_TIMEOUT"),
        )
        self._left: list[str] = []
        self._ready: set[str] = set()
        self._over = threading.Event()
        self._all_done = threading.Event()
        self._loop = asyncio.get_running_loop()

    # Admission

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        if self._problem:
            node.tell(problem=self._problem, code=1)
        await self._attend(node)

    async def _admitted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Node | None:
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
            check_hello(hello)
            name = "a server" if hello["role"] == "server" else f"worker {hello['rank']}"
            self._refuse(f"{name} at {host} has {error} GLUON_GC_SECRET, and is not let in")
            return None
        check_hello(hello)
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
        if message not in self._refused and len(self._refused) < _UNKNOWN:
            self._refused[message] = None
            logger.warning("scheduler: %s", message)

    def _enter(self, hello: dict[str, Any], session: Session, *streams: Any) -> Node:
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
            self._fail(f"the cluster does not fit together: {problem}")
        elif not self._missing() and not self._problem:
            self._answer()
        return node

    def _difference(self, name: str, hello: dict[str, Any]) -> str:
        for variable, value in required_settings().items():
            other = hello["settings"].get(variable)
            if other != value:
                return f"{name} has {variable} {other}, but the scheduler has {value}"
        if hello["role"] == "server":
            return ""
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

    def _missing(self) -> list[str]:
        """The nodes that have not joined.

        Until a worker joins, each machine counts as one worker.
        """
        expected = [f"server {i}" for i in range(self.cluster.num_server)]
        expected += [f"worker {i}" for i in range(self.cluster.total_workers)]
        return [name for name in expected if name not in self.nodes]

    def _answer(self) -> None:
        self.all_here.set()
        for writer in self._unknown:
            writer.transport.abort()
        self._stalls.expect([name for name in self.nodes if self.nodes[name].is_worker])
        for node in self.nodes.values():
            node.comes_back = True
            node.tell(
                name=node.name,
                local_size=self.cluster.local_size,
                port=self.return_port.number,
                framework=self.framework,
                store=self._store,
            )

    @property
    def _ends_to_restart(self) -> bool:
        """Whether this scheduler ends and restarts, so that new nodes must wait for the next."""
        return bool(self._problem) and restarts() is not None

    async def remind(self) -> None:
        """Warn of missing nodes at regular intervals, and give up after the time-out."""
        timeout = env.get("GLUON_GC_CONNECT_TIMEOUT" if restarts() else "GLUON_GC_TIMEOUT")
        while not self._problem:
            await asyncio.sleep(1)
            self._waited += 1
            missing = ", ".join(self._missing())
            if timeout and self._waited >= timeout and restarts():
                self._fail(f"{missing} did not come back within {timeout} s", ALONE)
            elif timeout and self._waited >= timeout:
                self._fail(f"{missing} did not come within {timeout} s (GLUON_GC_TIMEOUT)")
            elif self._waited % _REMINDER_SECONDS == 0:
                logger.warning("scheduler: waits for %s", missing)
                for message in self._refused:
                    logger.warning("scheduler: %s", message)

    # The cluster at work

    def _present(self) -> list[Node]:
        """The nodes that have not ended."""
        return [node for node in self.nodes.values() if not node.done]

    async def _attend(self, node: Node) -> None:
        """Handle the messages of a node until its connection ends."""
        try:
            while True:
                self._handle(node, await node.next())
        except (EOFError, asyncio.TimeoutError, ValueError, KeyError, TypeError):
            if not node.done:
                self._fail(f"{node.where} is gone")

    def _handle(self, node: Node, message: dict[str, Any]) -> None:
        if "problem" in message:
            self._fail(message["problem"])
        elif "failed" in message:
            self._fail(f"{node.where} has failed: {message['failed']}")
        elif "left" in message:
            self._left.append(node.name)
            self._tell(left=node.name, exchanges=message["left"])
            if len(self._left) == self.cluster.total_workers:
                self._tell(all_left=True)
        elif "sent" in message:
            self._stalls.update(node.name, **message)
        elif "ready" in message:
            self._prepare(node)
        else:
            self._prepare(node)
            node.done = True
            node.writer.close()
            if not self._present():
                self._all_done.set()

    def _prepare(self, node: Node) -> None:
        """Note that a node is ready to end. When all workers are ready, all nodes may end."""
        if node.is_worker and node.name not in self._ready:
            self._ready.add(node.name)
            if len(self._ready) == self.cluster.total_workers:
                self._tell(over=True)
                self._over.set()

    def _tell(self, **message: Any) -> None:
        for node in self._present():
            node.tell(**message)

    async def watch(self) -> None:
        """Exchange heartbeats with all nodes, and look for stalls."""
        interval = env.get("PS_HEARTBEAT_INTERVAL")
        while not self._problem:
            await asyncio.sleep(interval or _TICK)
            if interval:
                for node in self._present():
                    node.beat()
                if any(env.is_silent(node.silent - _TOGETHER) for node in self._present()):
                    self._fail(self._silence())
            warning, problem = self._stalls.look(interval or _TICK)
            if problem:
                self._fail(problem)
            if warning:
                logger.warning("scheduler: %s", warning)
                for name in self._stalls.waiting:
                    self.nodes[name].tell(warning=warning)

    def _silence(self) -> str:
        silent = [node for node in self._present() if env.is_silent(node.silent)]
        names = ", ".join(node.where for node in silent)
        problem = f"no heartbeat for {env.heartbeat_timeout()} s from {names}"
        machines = {node.machine for node in silent} - {self.cluster.root_uri}
        others = [node for node in self._present() if node.machine != self.cluster.root_uri]
        if len(machines) > 1 and all(node in silent for node in others):
            problem += ": the scheduler's machine is cut off from all others"
        return problem

    def _fail(self, problem: str, code: int = 1) -> None:
        """End all nodes and this process. The exit code is 0 if all workers have ended well."""
        if not self._problem:
            self._problem, self._code = problem, code
            workers = [node for node in self.nodes.values() if node.done and node.is_worker]
            if len(workers) == self.cluster.total_workers:
                self._problem, self._code = f"{problem}; all workers were done", 0
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        await asyncio.sleep(_HEAD_START)
        self._tell(problem=self._problem, code=self._code)
        await self._tell_late_nodes()
        for node in self._present():
            try:
                await asyncio.wait_for(node.writer.drain(), 1)
            except (OSError, asyncio.TimeoutError):
                pass  # the node is gone
        die(f"scheduler ends: {self._problem}", self._code)

    async def _tell_late_nodes(self) -> None:
        """Wait for late nodes and tell them the problem, unless the scheduler restarts."""
        if self._ends_to_restart or self._all_came.is_set():
            return
        timeout, late = env.get("GLUON_GC_CONNECT_TIMEOUT"), ", ".join(self._missing())
        logger.warning("scheduler: %s; waits up to %d s to tell %s", self._problem, timeout, late)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_came.wait(), timeout)

    # For other threads than the loop's

    def wait_for_workers(self) -> None:
        """Wait until all workers have ended, or are ready to end."""
        self._over.wait()

    def close(self, timeout: float) -> None:
        """Wait until all nodes have ended. After `timeout` seconds, end the cluster as failed."""
        if not self._all_done.wait(timeout):
            late = ", ".join(node.where for node in self._present())
            problem = f"{late} did not leave within {timeout:g} s"
            self._loop.call_soon_threadsafe(self._fail, problem)
            threading.Event().wait()  # until the loop ends this process


async def _admit_all(
    cluster: Cluster, without_mxnet: str, listener: socket.socket, admitted: Future
) -> None:
    scheduler = Scheduler(cluster, without_mxnet)
    await scheduler.return_port.open(cluster.root_uri)
    server = await asyncio.start_server(scheduler.admit, sock=listener, limit=LINE_BYTES)
    reminder = asyncio.ensure_future(scheduler.remind())
    watch = asyncio.ensure_future(scheduler.watch())
    await scheduler.all_here.wait()
    reminder.cancel()
    if scheduler.framework == "mxnet":
        server.close()  # ps-lite needs the port
    admitted.set_result(scheduler)
    await watch
    await asyncio.Event().wait()  # `scheduler` ends this process


def admit(cluster: Cluster, without_mxnet: str = "") -> Scheduler:
    """Listen as the scheduler, and wait until all nodes have joined.

    This process ends if a node leaves early, if two nodes claim the same rank, or if nodes differ
    in a value that must be the same on all. All nodes get the reason, and end too. The result's
    `cluster` has the number of workers on each machine, and the scheduler's IP address.
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


def serve() -> None:
    """Serve until all nodes have ended."""
    why_without_mxnet = ""
    try:
        ps_lite.library()  # fail before other nodes wait for this one
    except ImportError as error:
        if ps_lite.is_installed():
            raise
        why_without_mxnet = str(error)  # workers that train with PyTorch need no ps-lite
    scheduler = admit(env.cluster("scheduler"), why_without_mxnet)
    if scheduler.framework == "torch":
        logger.warning(
            "scheduler: the workers train with PyTorch and need no servers (DMLC_NUM_SERVER is %d)",
            scheduler.cluster.num_server,
        )
        scheduler.wait_for_workers()
    else:
        env.export_for_ps_lite(scheduler.cluster)
        ps_lite.serve(ps_lite.create(), lambda *_: None, scheduler.wait_for_workers)
    scheduler.close(env.get("PS_HEARTBEAT_TIMEOUT"))
