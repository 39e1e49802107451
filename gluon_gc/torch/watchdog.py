"""Warnings of waits that last longer than GLUON_GC_STALL_SECONDS."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import lru_cache
from typing import Callable, Dict, Iterator

from .. import env
from ..log import logger

_TICK = 1.0  # seconds between two checks of all waits

_waits: Dict[int, _Wait] = {}
_lock = threading.Lock()


class _Wait:
    """One wait. It counts ticks, so that a suspended process causes no false warning."""

    def __init__(self, for_what: Callable[[], str]) -> None:
        self._for_what, self._seconds = for_what, 0.0

    def tick(self, most: int) -> None:
        self._seconds += _TICK
        if self._seconds % most < _TICK:
            logger.warning("%s, for %s s now", self._for_what(), int(self._seconds))


@contextmanager
def waiting(for_what: Callable[[], str]) -> Iterator[None]:
    """Return a context in which this thread waits. `for_what` describes it for the warning."""
    if env.get("GLUON_GC_STALL_SECONDS"):
        with _lock:
            _start()
    wait = _Wait(for_what)
    _waits[id(wait)] = wait
    try:
        yield
    finally:
        del _waits[id(wait)]


@lru_cache(maxsize=None)  # once: the thread ends with the process
def _start() -> None:
    threading.Thread(target=_run, daemon=True).start()


def _run() -> None:
    while True:
        time.sleep(_TICK)
        for wait in list(_waits.values()):
            wait.tick(env.get("GLUON_GC_STALL_SECONDS"))
