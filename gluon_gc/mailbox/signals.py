"""Signals: SIGTERM ends a worker, and no signal comes while it must not be interrupted."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, Callable, NoReturn

_exit_code: int | None = None  # since SIGTERM has told this process to end


def exit_at_sigterm() -> None:
    """Raise SystemExit at SIGTERM, unless the script handles it."""
    global _exit_code
    _exit_code = None
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: Any) -> NoReturn:
    global _exit_code
    _exit_code = 128 + number
    sys.exit(_exit_code)


def exit_if_told() -> None:
    """Raise SystemExit again if SIGTERM has come, but the process goes on.

    Python ignores errors in `__del__` and in callbacks from C. MXNet has many of both.
    """
    if _exit_code is not None:
        sys.exit(_exit_code)


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
