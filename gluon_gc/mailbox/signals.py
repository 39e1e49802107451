"""Signals: holds SIGTERM and Ctrl-C back while a worker must not be interrupted."""

from __future__ import annotations

import signal
import threading
from typing import Any, Callable


class Signals:
    """Holds SIGTERM and Ctrl-C back between `hold` and `release`.

    While a round is applied, the parameters do not fit the anchor, so a worker that leaves would
    put changes that the round has counted already. While a worker leaves, its last payload may be
    on its way.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._arrived: list[int] = []

    def hold(self) -> None:
        if self._handlers or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    @property
    def count(self) -> int:
        """The number of signals that are held back."""
        return len(self._arrived)

    def _note(self, number: int, frame: Any) -> None:
        self._arrived.append(number)

    def release(self) -> None:
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            signal.signal(number, handler)
        arrived, self._arrived = self._arrived, []
        for number in arrived:
            signal.raise_signal(number)
