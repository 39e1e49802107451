"""The scheduler's side of the connections to all nodes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any, Dict, List, Optional, Set, Tuple

from .. import env
from ..env import Cluster
from ..log import logger
from .leaving import die
from .returning import Door
from .session import Session, plain
from .stall import Stalls

_HEAD_START = 0.2  # seconds before other nodes end, so that launchers see the failed node first
_TOGETHER = 2  # heartbeat intervals within which one fault silences all nodes that it cuts off
_TICK = 1.0  # seconds between two checks without heartbeats
_Return = Tuple[asyncio.StreamReader, asyncio.StreamWriter, int]


class Node:
    """The connection to a node.

    Attributes
    ----------
    where : str
        The name and the host of the node.
    silent : int
        The number of heartbeat intervals since its last message.
    machine : str
        The address of its machine.
    done : bool
        Whether it has ended without an error.
    comes_back : bool
        Whether it can reconnect after the network has reset its connection.
    """

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
        self.silent = 0
        self.done = False
        self.comes_back = False
        # New connections of the node; None: it has ended, and will not reconnect.
        self._returns: asyncio.Queue[Optional[_Return]] = asyncio.Queue()
        self._life: Optional[asyncio.Future] = None

    @property
    def is_worker(self) -> bool:
        return self.name.startswith("worker")

    def tell(self, **message: Any) -> None:
        """Send a message, unless the node has ended."""
        if not self.done:
            self.writer.write(self._session.seal(message))

    def beat(self) -> None:
        """Send a heartbeat, and count an interval in which the node was silent."""
        self.silent += 1
        if not self.writer.is_closing():
            self.writer.write(b"\n")

    async def next(self) -> Dict[str, Any]:
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

    def let_in(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: int
    ) -> None:
        """Take over a new connection of the node.

        `received` is the number of lines that the node had received on all earlier connections.
        """
        if self.done:
            writer.write(plain({"received": self._session.received}))
            writer.close()
        else:
            self._returns.put_nowait((reader, writer, received))
            self.writer.transport.abort()  # the scheduler may not have noticed the reset

    def lives(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use this connection from now on to detect the end of the node's process."""
        if self._life is not None:
            self._life.cancel()
        self._life = asyncio.ensure_future(self._outlive(reader, writer))

    async def _outlive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # a reset does not mean that the process has ended
            await reader.read()
            self._returns.put_nowait(None)
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


class Nodes:
    """The connections to all nodes, in an asyncio loop.

    Attributes
    ----------
    problem : str
        The reason why the cluster ends; empty while it runs.
    framework : str
        The framework of the workers, "mxnet" or "torch"; empty until the first worker joins.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.framework = ""
        self.problem = ""
        self._code = 0
        self.nodes: Dict[str, Node] = {}
        self.stalls = Stalls(
            self._where, env.get("GLUON_GC_STALL_SECONDS"), env.get("GLUON_GC_TIMEOUT")
        )
        self.door = Door(self.nodes)
        self._left: List[str] = []
        self._ready: Set[str] = set()
        self._over = threading.Event()
        self._all_done = threading.Event()
        self._loop = asyncio.get_running_loop()

    def _where(self, name: str) -> str:
        return self.nodes[name].where if name in self.nodes else name

    def present(self) -> List[Node]:
        """The nodes that have not ended."""
        return [node for node in self.nodes.values() if not node.done]

    async def attend(self, node: Node) -> None:
        """Handle the messages of a node until its connection ends."""
        try:
            while True:
                self._heed(node, await node.next())
        except (EOFError, asyncio.TimeoutError, ValueError, KeyError, TypeError):
            if not node.done:
                self.fail(f"{node.where} is gone")

    def _heed(self, node: Node, message: Dict[str, Any]) -> None:
        if "problem" in message:
            self.fail(message["problem"])
        elif "failed" in message:
            self.fail(f"{node.where} has failed: {message['failed']}")
        elif "left" in message:
            self._left.append(node.name)
            self._tell(left=node.name, exchanges=message["left"])
            if len(self._left) == self.cluster.total_workers:
                self._tell(all_left=True)
        elif "sent" in message:
            self.stalls.heed(node.name, **message)
        elif "ready" in message:
            self._prepare(node)
        else:
            self._prepare(node)
            node.done = True
            node.writer.close()
            if not self.present():
                self._all_done.set()

    def _prepare(self, node: Node) -> None:
        """Note that a node is ready to end. When all workers are ready, all nodes may end."""
        if node.is_worker and node.name not in self._ready:
            self._ready.add(node.name)
            if len(self._ready) == self.cluster.total_workers:
                self._tell(over=True)
                self._over.set()

    def _tell(self, **message: Any) -> None:
        for node in self.present():
            node.tell(**message)

    async def watch(self) -> None:
        """Exchange heartbeats with all nodes, and look for stalls."""
        interval = env.get("PS_HEARTBEAT_INTERVAL")
        while not self.problem:
            await asyncio.sleep(interval or _TICK)
            if interval:
                self._beat()
            warning, problem = self.stalls.look(interval or _TICK)
            if problem:
                self.fail(problem)
            if warning:
                logger.warning("scheduler: %s", warning)
                for name in self.stalls.waiting:
                    self.nodes[name].tell(warning=warning)

    def _beat(self) -> None:
        for node in self.present():
            node.beat()
        if any(env.is_silent(node.silent - _TOGETHER) for node in self.present()):
            self.fail(self._silence())

    def _silence(self) -> str:
        """Describe the nodes that are silent."""
        silent = [node for node in self.present() if env.is_silent(node.silent)]
        names = ", ".join(node.where for node in silent)
        problem = f"no heartbeat for {env.heartbeat_timeout()} s from {names}"
        machines = {node.machine for node in silent} - {self.cluster.root_uri}
        others = [node for node in self.present() if node.machine != self.cluster.root_uri]
        if len(machines) > 1 and all(node in silent for node in others):
            problem += ": the scheduler's machine is cut off from all others"
        return problem

    def fail(self, problem: str, code: int = 1) -> None:
        """End all nodes and this process. The exit code is 0 if all workers have ended well."""
        if not self.problem:
            self.problem, self._code = problem, code
            if self._all_workers_done():
                self.problem, self._code = f"{problem}; all workers were done", 0
            self._ending = asyncio.ensure_future(self._end())

    def _all_workers_done(self) -> bool:
        workers = [node for node in self.nodes.values() if node.done and node.is_worker]
        return len(workers) == self.cluster.total_workers

    async def _end(self) -> None:
        await asyncio.sleep(_HEAD_START)
        self._tell(problem=self.problem, code=self._code)
        await self.aftermath()
        for node in self.present():
            try:
                await asyncio.wait_for(node.writer.drain(), 1)
            except (OSError, asyncio.TimeoutError):
                pass  # the node is gone
        die(f"scheduler ends: {self.problem}", self._code)

    async def aftermath(self) -> None:
        """Called after all nodes were told of a problem, before this process ends."""

    # The following methods are called from other threads than the loop's

    def wait_for_workers(self) -> None:
        """Wait until all workers have ended, or are ready to end."""
        self._over.wait()

    def close(self, timeout: float) -> None:
        """Wait until all nodes have ended. After `timeout` seconds, end the cluster as failed."""
        if not self._all_done.wait(timeout):
            late = ", ".join(node.where for node in self.present())
            problem = f"{late} did not leave within {timeout:g} s"
            self._loop.call_soon_threadsafe(self.fail, problem)
            threading.Event().wait()  # until the loop ends this process
