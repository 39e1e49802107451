"""The connections on which nodes met the scheduler, which stay open for the whole job.

The end of one means that its node is gone; the scheduler tells all others who and why, and they
leave. A node that is done says so first. Messages are lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import Any, Dict, List, Sequence, Set, Tuple

from .. import env
from ..env import Cluster
from .connection import Door, NodeEnd, SchedulerEnd, line
from .leaving import die

_WHY_CHARACTERS = 1000  # of a reason, which may be anything that a script raises
_HEAD_START = 0.2  # seconds that one who failed ends before all others: launchers see it first


class Lifeline:
    """A worker's or server's end. A thread reads it, and ends the process when the cluster ends.

    Parameters
    ----------
    link : NodeEnd
        Connected to the scheduler, which has everybody now.
    name : str
        What the scheduler calls this node.
    cluster : Cluster
        As all nodes know it now.
    """

    def __init__(self, link: NodeEnd, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster
        self._link = link
        self._exchanges = 0
        self._left: List[Tuple[str, int]] = []
        self._all_left = threading.Event()
        self._over = threading.Event()
        self._closed = False
        os.register_at_fork(after_in_child=self._close)  # else a child would keep it open
        self._thread = threading.Thread(target=self._listen, name="gluon_gc lifeline", daemon=True)
        self._thread.start()

    def tell(self, **message: Any) -> None:
        """Tell the scheduler."""
        self._link.write(line(message))

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

    def stay(self) -> None:
        """Wait until all workers come here or are done."""
        self.tell(ready=True)
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Wait until all workers are done, or `stay` until then."""
        self._over.wait()

    def abandon(self, why: str) -> None:
        """Leave now; all others end, and say why."""
        self._fail(f"{self.name} has failed: {why}")

    def close(self) -> None:
        """This node is done; returns when the scheduler knows."""
        self._closed = True
        self.tell(done=True)
        self._thread.join(env.get("PS_HEARTBEAT_TIMEOUT"))
        self._link.close()

    def _fail(self, problem: str) -> None:
        self._closed = True
        self.tell(problem=problem[:_WHY_CHARACTERS])

    def _close(self) -> None:
        self._closed = True
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
            for message in map(json.loads, self._link.lines()):
                if "problem" in message:
                    self._die(message["problem"])
                elif "left" in message:
                    self._left.append((message["left"], message["exchanges"]))
                    self._check()
                elif "over" in message:
                    self._over.set()
                else:
                    self._all_left.set()
        except ValueError:
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
        self.door = Door()
        self.writers: Dict[str, SchedulerEnd] = {}
        self.ids: Dict[int, str] = {}
        self._left: Dict[str, int] = {}
        self._silent: List[str] = []
        self._ready: Set[str] = set()
        self._done: List[str] = []
        self._over = threading.Event()
        self._all_done = threading.Event()
        self._loop = asyncio.get_running_loop()

    async def attend(self, name: str) -> None:
        """Listen to a node until it is gone."""
        try:
            async for text in self.writers[name].lines():
                self._heed(name, json.loads(text))
        except ValueError:
            pass
        if name in self._done:
            return
        if self.writers[name].silent:
            self._silent.append(name)
            await asyncio.sleep(1 + env.get("PS_HEARTBEAT_TIMEOUT") / 4)  # others may be as well
            self.fail(self.silence(self._silent))
        self.fail(f"{name} is gone")

    def silence(self, names: Sequence[str]) -> str:
        """What is wrong where nothing is heard of these nodes."""
        others = {name for name, end in self.writers.items() if end.machine} - set(self._done)
        machines = {self.writers[name].machine for name in names} - {""}
        problem = f"no heartbeat for {env.get('PS_HEARTBEAT_TIMEOUT')} s from {', '.join(names)}"
        if len(machines) > 1 and others <= set(names):
            problem += ": the scheduler's machine is cut off from all others"
        return problem

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
        elif "ready" in message:
            self._prepare(name)
        else:
            self._prepare(name)
            self._done.append(name)
            self.ids = {id: other for id, other in self.ids.items() if other != name}
            self.writers[name].close()
            if len(self._done) == len(self.writers):
                self._all_done.set()

    def _prepare(self, name: str) -> None:
        """A node is ready for the end; servers are once all workers are."""
        if name in self._ready:
            return
        self._ready.add(name)
        if len(self._ready) == self.cluster.total_workers:
            self._tell(over=True)
            self._over.set()

    def _tell(self, **message: Any) -> None:
        for name, writer in self.writers.items():
            if name not in self._done:
                writer.write(line(message))

    def fail(self, problem: str) -> None:
        """End all nodes, and this process."""
        if not self.problem:
            self.problem = problem
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        await asyncio.sleep(_HEAD_START)
        self._tell(problem=self.problem)
        await self.aftermath()
        for name, writer in self.writers.items():
            if name not in self._done:
                try:
                    await asyncio.wait_for(writer.drain(), 1)
                except (OSError, asyncio.TimeoutError):
                    pass  # it is the one that is gone
        die(f"scheduler ends: {self.problem}")

    async def aftermath(self) -> None:
        """What there is still to do once all have been told of a problem."""

    # For other threads

    def fail_soon(self, problem: str) -> None:
        """`fail`, from any thread."""
        self._loop.call_soon_threadsafe(self.fail, problem)

    def wait_for_workers(self) -> None:
        """Wait until all workers are done or ready to end."""
        self._over.wait()

    def close(self, timeout: float) -> None:
        """Wait until all nodes are done."""
        if not self._all_done.wait(timeout):
            late = [name for name in self.writers if name not in self._done]
            self.fail_soon(f"{', '.join(late)} did not leave within {timeout:g} s")
            threading.Event().wait()  # until the loop ends this process
