"""The objects of this worker that are closed at shutdown."""

from __future__ import annotations

import atexit
import time
import weakref
from functools import lru_cache
from typing import Any

_GLOO_CLEANUP_SECONDS = 0.1

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def opened(closable: Any) -> None:
    """Close this object at shutdown, if it still exists. Its `close` may be called twice."""
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
