"""Watches the heartbeats of ps-lite: also a machine that is cut off, or a process that hangs."""

from __future__ import annotations

import ctypes
import threading
from typing import Callable

from mxnet.base import _LIB
from mxnet.kvstore.kvstore import KVStore

from ...launch.leaving import die

SCHEDULER_ID = 1  # as ps-lite numbers nodes


def server_id(rank: int) -> int:
    """The ps-lite id of the server with this rank of ps-lite's."""
    return 8 + 2 * rank


def worker_id(rank: int) -> int:
    """The ps-lite id of the worker with this rank of ps-lite's."""
    return 9 + 2 * rank


def is_dead(kv: KVStore, node_id: int, timeout: int) -> bool:
    """Whether the node with this ps-lite id has not sent a heartbeat for `timeout` seconds.

    The scheduler hears everybody's heartbeats, the others only the scheduler's. With a time-out
    of 0 nobody is dead.
    """
    number = ctypes.c_int()
    wrong = _LIB.MXKVStoreGetNumDeadNode(
        kv.handle, ctypes.c_int(node_id), ctypes.byref(number), ctypes.c_int(timeout)
    )
    return not wrong and number.value > 0  # ps-lite knows no nodes once it has left them


class Watch:
    """A thread that asks `problem` every second until it answers, which it hands to `end`.

    Parameters
    ----------
    problem : callable
        Returns what is wrong, in words, or an empty string.
    end : callable
        Ends the process, with that message.
    """

    def __init__(self, problem: Callable[[], str], end: Callable[[str], None] = die) -> None:
        self._problem, self._end = problem, end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gluon_gc watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(1.0):
            problem = self._problem()
            if problem:
                self._end(problem)
                return
