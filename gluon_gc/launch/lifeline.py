"""The connections on which nodes met the scheduler, which stay open for the whole job.

The end of one means that its node is gone; the scheduler tells all others who and why, and they
leave. A node that is done says so first. Messages are lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from typing import Any, Dict, List, Tuple

from .. import env
from ..env import Cluster
from .leaving import ALONE, die

LINE_BYTES = 8192
"""The most that a line may have."""
_WHY_CHARACTERS = 1000  # of a reason, which may be anything that a script raises
_HEAD_START = 0.2  # seconds that one who failed ends before all others: launchers see it first


def line(message: Dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def keep_alive(link: socket.socket) -> None:
    """Let a connection end once the other machine has been silent for PS_HEARTBEAT_TIMEOUT."""
    timeout = env.heartbeat_timeout()
    if timeout:
        probes = min(timeout, 4)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, timeout // probes))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, timeout // probes))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * timeout)


class Lifeline:
    """A worker's or server's end. A thread reads it, and ends the process when the cluster ends.

    Parameters
    ----------
    link : socket
        Connected to the scheduler, which has everybody now.
    name : str
        What the scheduler calls this node.
    cluster : Cluster
        As all nodes know it now.
    """

    def __init__(self, link: socket.socket, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster
        self._link = link
        self._lines = link.makefile("rb", buffering=0)
        self._exchanges = 0
        self._left: List[Tuple[str, int]] = []
        self._all_left = threading.Event()
        self._closed = False
        os.register_at_fork(after_in_child=self._close)  # else a child would keep it open
        threading.Thread(target=self._listen, name="gluon_gc lifeline", daemon=True).start()

    def tell(self, **message: Any) -> None:
        """Tell the scheduler."""
        try:
            self._link.sendall(line(message))
        except OSError:
            pass  # `_listen` sees it too

    def know(self, node_id: int) -> None:
        """Tell the scheduler which node of ps-lite this is."""
        self.tell(id=node_id)

    def next_exchange(self) -> None:
        """Count an exchange that needs all workers; it ends the process if one has left before."""
        self._exchanges += 1
        self._check()

    def leave(self) -> None:
        """Wait until all workers leave."""
        self.tell(left=self._exchanges)
        self._all_left.wait()

    def abandon(self, why: str) -> None:
        """Leave now; all others end, and say why."""
        self._fail(f"{self.name} has failed: {why}")

    def close(self) -> None:
        """This node is done."""
        self.tell(done=True)
        self._close()

    def _fail(self, problem: str) -> None:
        self._closed = True
        self.tell(problem=problem[:_WHY_CHARACTERS])

    def _close(self) -> None:
        self._closed = True
        self._lines.close()
        self._link.close()

    def _check(self) -> None:
        for name, exchanges in self._left:
            if self._exchanges > exchanges:
                problem = (
                    f"{name} has left after {exchanges} exchanges, but {self.name} has begun "
                    "another: one script ended, or called sys.exit(), before the other"
                )
                self._fail(problem)
                die(f"{self.name} ends: {problem}")

    def _listen(self) -> None:
        try:
            for message in map(json.loads, self._lines):
                if "problem" in message:
                    self._die(message["problem"])
                elif "left" in message:
                    self._left.append((message["left"], message["exchanges"]))
                    self._check()
                else:
                    self._all_left.set()
        except (OSError, ValueError):
            pass
        self._die("the scheduler is gone")

    def _die(self, problem: str) -> None:
        if not self._closed:
            die(f"{self.name} ends: {problem}")


class Lifelines:
    """The scheduler's ends of all nodes' connections; lives in an asyncio loop.

    Attributes
    ----------
    problem : str
        Why the cluster ends; empty while all is well.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.problem = ""
        self._alone = False
        self.writers: Dict[str, asyncio.StreamWriter] = {}
        self.ids: Dict[int, str] = {}
        self._left: Dict[str, int] = {}
        self._done: List[str] = []
        self._all_done = threading.Event()
        self._loop = asyncio.get_running_loop()

    async def attend(self, name: str, reader: asyncio.StreamReader) -> None:
        """Listen to a node until it is gone."""
        try:
            async for text in reader:
                self._heed(name, json.loads(text))
        except (OSError, ValueError):
            pass
        if name not in self._done:
            self.fail(f"{name} is gone")

    def _heed(self, name: str, message: Dict[str, Any]) -> None:
        if "problem" in message:
            self.fail(message["problem"])
        elif "id" in message:
            self.ids[message["id"]] = name
        elif "left" in message:
            self._left[name] = message["left"]
            self._tell(left=name, exchanges=message["left"])
            if len(self._left) == self.cluster.total_workers:
                self._tell(all_left=True)
        else:
            self._done.append(name)
            if len(self._done) == len(self.writers):
                self._all_done.set()

    def _tell(self, **message: Any) -> None:
        for name, writer in self.writers.items():
            if name not in self._done:
                writer.write(line(message))

    def fail(self, problem: str, alone: bool = False) -> None:
        """End all nodes, and this process; `alone`: for good, since some have not come back."""
        if not self.problem:
            self.problem, self._alone = problem, alone
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        await asyncio.sleep(_HEAD_START)
        self._tell(problem=self.problem, alone=self._alone)
        await self.aftermath()
        for name, writer in self.writers.items():
            if name not in self._done:
                try:
                    await asyncio.wait_for(writer.drain(), 1)
                except (OSError, asyncio.TimeoutError):
                    pass  # it is the one that is gone
        die(f"scheduler ends: {self.problem}", ALONE if self._alone else 1)

    async def aftermath(self) -> None:
        """What there is still to do once all have been told of a problem."""

    # For other threads

    def fail_soon(self, problem: str) -> None:
        """`fail`, from any thread."""
        self._loop.call_soon_threadsafe(self.fail, problem)

    def close(self, timeout: float) -> None:
        """Wait until all nodes are done, from another thread than the loop's."""
        if not self._all_done.wait(timeout):
            late = [name for name in self.writers if name not in self._done]
            self.fail_soon(f"{', '.join(late)} did not leave within {timeout:g} s")
            threading.Event().wait()  # until the loop ends this process
