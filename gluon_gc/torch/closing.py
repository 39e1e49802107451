"""What is open, and is closed when this worker shuts down."""

from __future__ import annotations

import weakref
from typing import Protocol


class Closable(Protocol):
    """What has threads or groups."""

    def close(self) -> None:
        """End them; does nothing the second time."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def opened(one: Closable) -> None:
    """Have it closed at the end, if nobody closes it earlier."""
    _open.add(one)


def close_all() -> None:
    """Close all of them."""
    for one in list(_open):
        one.close()
    _open.clear()
