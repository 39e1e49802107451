"""The objects of this worker that are closed at shutdown."""

from __future__ import annotations

import weakref
from typing import Protocol


class Closable(Protocol):
    """An object with threads or process groups."""

    def close(self) -> None:
        """Stop the threads and release the groups. A second call does nothing."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def opened(closable: Closable) -> None:
    """Close this object at shutdown, unless it is closed earlier."""
    _open.add(closable)


def close_all() -> None:
    for closable in list(_open):
        closable.close()
    _open.clear()
