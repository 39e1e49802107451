"""The objects of this worker that are closed at shutdown."""

from __future__ import annotations

import atexit
import time
import weakref
from functools import lru_cache
from typing import Protocol


class Closable(Protocol):
    """An object with threads or process groups."""

    def close(self) -> None:
        """Stop the threads and release the groups. A second call does nothing."""


_GLOO_CLEANUP_SECONDS = 0.1

_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def opened(closable: Closable) -> None:
    """Close this object at shutdown, unless it is closed earlier."""
    _open.add(closable)
    await_threads_at_exit()


def close_all() -> None:
    for closable in list(_open):
        closable.close()
    _open.clear()


def await_threads() -> None:
    """Wait until Gloo's threads have freed the buffers of collectives, for which they need the GIL.

    PyTorch holds the GIL while it joins these threads. Without shutdown, a thread that asks for the
    GIL while Python ends would abort the process.
    """
    time.sleep(_GLOO_CLEANUP_SECONDS)


@lru_cache(maxsize=None)  # once
def await_threads_at_exit() -> None:
    atexit.register(await_threads)
