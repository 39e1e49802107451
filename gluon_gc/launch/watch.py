"""Watches the heartbeats of ps-lite: also a machine that is cut off, or a process that hangs."""

from __future__ import annotations

import ctypes
import threading
from typing import Callable

from .. import env
from . import ps_lite
from .leaving import die

_IN_A_ROW = 3  # a process that was suspended has heard nobody, until the next heartbeats come


class Watch:
    """A thread that asks `problem` every second until it answers, and goes on to do so.

    What it answered is handed to `end`.

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
        times = 0
        while times < _IN_A_ROW and not self._stopped.wait(1.0):
            problem = self._problem()
            times = times + 1 if problem else 0
        if times == _IN_A_ROW:
            self._end(problem)


def scheduler(node: ctypes.c_void_p, name: str) -> Watch:
    """Watch the scheduler of the node that is called so, which ends without it."""
    timeout = env.heartbeat_timeout()
    gone = f"{name} ends: no heartbeat for {timeout} s from the scheduler"
    return Watch(lambda: gone if ps_lite.is_dead(node, ps_lite.SCHEDULER_ID, timeout) else "")
