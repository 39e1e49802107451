"""Warnings of waits that last longer than GLUON_GC_STALL_SECONDS."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any, Callable

from .. import env
from ..log import logger

_TICK = 1.0  # seconds between two checks of all waits

_waits: dict[int, waiting] = {}
_lock = threading.Lock()


class waiting:
    """A context in which this thread waits. `for_what` describes it for the warning.

    It counts ticks, so that a suspended process causes no false warning.
    """

    def __init__(self, for_what: Callable[[], str]) -> None:
        self._for_what, self._seconds = for_what, 0.0
        with _lock:
            _start()

    def __enter__(self) -> None:
        _waits[id(self)] = self

    def __exit__(self, *error: Any) -> None:
        del _waits[id(self)]

    def tick(self, most: int) -> None:
        """Count a second, and warn after each `most` of them."""
        self._seconds += _TICK
        if self._seconds % most < _TICK:
            logger.warning("%s, for %s s now", self._for_what(), int(self._seconds))


@lru_cache(maxsize=None)  # once: the thread ends with the process
def _start() -> None:
    env.get("GLUON_GC_STALL_SECONDS")  # an error must reach the script
    threading.Thread(target=_run, daemon=True).start()


def _run() -> None:
    most = 0
    while True:
        time.sleep(_TICK)
        with suppress(ValueError):  # a later value that is not valid changes nothing
            most = env.get("GLUON_GC_STALL_SECONDS")
        for wait in list(_waits.values()) if most else ():
            wait.tick(most)
