"""The lifeline: a node's connection to the scheduler, which stays open for the whole job.

If it ends or is silent, the node at its other end is gone. The scheduler then tells all nodes which
node is gone and why (`nodes`), and they end. A node that ends normally says so first.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import env
from ..env import Cluster
from ..log import logger
from .connection import Connection, SilentError
from .leaving import die, left_early
from .progress import Progress

_REASON_CHARACTERS = 1000  # limit of a reason, which may be any exception of a script


class Lifeline:
    """The end of a worker or a server. Its thread ends the process if the cluster fails.

    Parameters
    ----------
    connection : Connection
        The connection to the scheduler, after all nodes have joined.
    name : str
        The scheduler's name for this node, such as "worker 0".
    cluster : Cluster
        The cluster, with the values that the scheduler has added.
    store : pair of (str, int), optional
        The address and the port at which worker 0 of PyTorch listens.

    Attributes
    ----------
    progress : Progress
        The progress of this node. The scheduler gets reports of it, and finds stalls.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        cluster: Cluster,
        store: Optional[Sequence[Any]] = None,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.store = store
        self.progress = Progress()
        self._connection = connection
        self._reported = self.progress.now()
        self._exchanges = 0
        self._left: List[Tuple[str, int]] = []
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
                    self._heed(message)
            self._die("the scheduler is gone")
        except SilentError:
            self._die(f"no heartbeat for {env.heartbeat_timeout()} s from the scheduler")
        except (ValueError, KeyError):
            self._die("the scheduler is gone")  # its message was incomplete

    def _heed(self, message: Dict[str, Any]) -> None:
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
