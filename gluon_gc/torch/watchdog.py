"""Watchdog: warns of waits that last longer than GLUON_GC_STALL_SECONDS."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, Optional

from .. import env
from ..log import logger

_TICK = 1.0  # seconds between two checks of all waits


class Watchdog:
    """A thread that checks the waits of this process.

    It starts with the first wait, and ends with the process.
    """

    def __init__(self) -> None:
        self._waits: Dict[int, _Wait] = {}
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self, for_what: Callable[[], str]) -> Iterator[None]:
        """Return a context in which this thread waits.

        `for_what` returns a description of the wait, for the warning.
        """
        self._start()
        wait = _Wait(for_what)
        self._waits[id(wait)] = wait
        try:
            yield
        finally:
            del self._waits[id(wait)]

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and env.get("GLUON_GC_STALL_SECONDS"):
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(_TICK)
            for wait in list(self._waits.values()):
                wait.tick(env.get("GLUON_GC_STALL_SECONDS"))


class _Wait:
    """One wait. It counts ticks, so that a suspended process causes no false warning."""

    def __init__(self, for_what: Callable[[], str]) -> None:
        self._for_what, self._seconds = for_what, 0.0

    def tick(self, most: int) -> None:
        self._seconds += _TICK
        if self._seconds % most < _TICK:
            logger.warning("%s, for %s s now", self._for_what(), int(self._seconds))


waiting = Watchdog().waiting
