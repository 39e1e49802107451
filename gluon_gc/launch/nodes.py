"""The scheduler's ends of all nodes' connections: who is there, who is gone, who is told of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Dict, List

from .. import env
from ..env import Cluster
from ..log import logger
from .leaving import die
from .session import Session
from .stall import Stalls

_HEAD_START = 0.2  # seconds that one who failed ends before all others: launchers see it first
_TICK = 1.0  # seconds between two looks around, where there are no signs of life


class Node:
    """A node that has come.

    Attributes
    ----------
    where : str
        Its name and host.
    silent : int
        Intervals since something was heard of it.
    done : bool
        Whether it has left well.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.name, self._session = name, session
        self.where = f"{name} at {writer.get_extra_info('peername')[0]}"
        self.reader, self.writer = reader, writer
        self.silent = 0
        self.done = False

    def tell(self, **message: Any) -> None:
        """Tell it, unless it is done."""
        if not self.done:
            self.writer.write(self._session.seal(message))

    async def next(self) -> Dict[str, Any]:
        """What it says next; ConnectionError at its end, ValueError if it is not ours."""
        while True:
            line = await self.reader.readline()
            if not line:
                raise ConnectionResetError
            self.silent = 0
            if line != b"\n":
                return self._session.open(line)


class Nodes:
    """All of them; lives in an asyncio loop.

    Attributes
    ----------
    problem : str
        Why the cluster ends; empty while all is well.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.problem = ""
        self.nodes: Dict[str, Node] = {}
        self.stalls = Stalls(
            self._where, env.get("GLUON_GC_STALL_SECONDS"), env.get("GLUON_GC_TIMEOUT")
        )
        self._left: List[str] = []
        self._all_done = threading.Event()
        self._loop = asyncio.get_running_loop()

    def _where(self, name: str) -> str:
        return self.nodes[name].where if name in self.nodes else name

    def present(self) -> List[Node]:
        """Those that are not done."""
        return [node for node in self.nodes.values() if not node.done]

    async def attend(self, node: Node) -> None:
        """Listen to a node until it is gone."""
        try:
            while True:
                self._heed(node, await node.next())
        except (OSError, ValueError, KeyError, TypeError):
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
        else:
            node.done = True
            if not self.present():
                self._all_done.set()

    def _tell(self, **message: Any) -> None:
        for node in self.present():
            node.tell(**message)

    async def watch(self) -> None:
        """Exchange signs of life with all nodes, and look for stalls."""
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
            node.writer.write(b"\n")
            node.silent += 1
        silent = [node.where for node in self.present() if env.is_silent(node.silent)]
        if silent:
            timeout = env.heartbeat_timeout()
            self.fail(f"no heartbeat for {timeout} s from {', '.join(silent)}")

    def fail(self, problem: str) -> None:
        """End all nodes, and this process."""
        if not self.problem:
            self.problem = problem
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        await asyncio.sleep(_HEAD_START)
        self._tell(problem=self.problem)
        await self.aftermath()
        for node in self.present():
            try:
                await asyncio.wait_for(node.writer.drain(), 1)
            except (OSError, asyncio.TimeoutError):
                pass  # it is the one that is gone
        die(f"scheduler ends: {self.problem}")

    async def aftermath(self) -> None:
        """What there is still to do once all have been told of a problem."""

    def close(self, timeout: float) -> None:
        """Wait until all nodes are done, from another thread than the loop's."""
        if not self._all_done.wait(timeout):
            late = ", ".join(node.where for node in self.present())
            problem = f"{late} did not leave within {timeout:g} s"
            self._loop.call_soon_threadsafe(self.fail, problem)
            threading.Event().wait()  # until the loop ends this process
