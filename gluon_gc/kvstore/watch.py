"""Ends a process of the cluster when a node that it needs is gone."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import Callable, Optional, Type

from mxnet.base import _LIB, check_call
from mxnet.kvstore.kvstore import KVStore

from ..log import logger

SCHEDULER_ID = 1


def is_dead(kv: KVStore, node_id: int, timeout: int) -> bool:
    """Whether the node with this ps-lite id has not sent a heartbeat for `timeout` seconds.

    The scheduler hears everybody's heartbeats, the others only the scheduler's. With a time-out
    of 0 nobody is dead.
    """
    number = ctypes.c_int()
    check_call(
        _LIB.MXKVStoreGetNumDeadNode(
            kv.handle, ctypes.c_int(node_id), ctypes.byref(number), ctypes.c_int(timeout)
        )
    )
    return number.value > 0


class Watch:
    """A thread that asks `problem` every second, and ends the process when it answers.

    Parameters
    ----------
    problem : callable
        Returns what is wrong, in words, or an empty string.
    """

    def __init__(self, problem: Callable[[], str]) -> None:
        self._problem = problem
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
                die(problem)


def die(message: str) -> None:
    """Say why and end the process at once: its main thread may wait for good inside MXNet."""
    sys.stdout.flush()
    logger.critical(message)
    os._exit(1)


def die_of(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    """An excepthook for workers: end the process at once.

    Python's own way out waits inside MXNet for the other workers, who would wait for this one.
    """
    sys.stdout.flush()
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)
