"""How a process of the cluster ends: when all do, or at once where something went wrong."""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, NoReturn, Optional, Type

from ..log import logger

ALONE = 69
"""The exit code of a node that was restarted, and to which the others have not come back."""


class AloneError(ConnectionError):
    """The others have not come back to this node, which was restarted."""


class NotNeededError(Exception):
    """This server had nothing to do: the workers were PyTorch's."""


def die(message: str, code: int = 1) -> NoReturn:
    """Say why and end the process at once: its main thread may wait for good inside MXNet."""
    _flush()
    logger.critical(message)
    end(code)


def exit_code(error: BaseException) -> int:
    """With what a process ends that such an exception ends."""
    return ALONE if isinstance(error, AloneError) else 1


def _flush() -> None:
    for stream, own in ((sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__)):
        # Its reader has gone, it was closed, or it is None since it was before Python started.
        with suppress(OSError, ValueError, AttributeError):
            if isinstance(stream, io.StringIO):  # in which torch.distributed's excepthook collects
                own.write(stream.getvalue())
                stream.truncate(0)
                stream = own
            stream.flush()


def end(code: int) -> NoReturn:
    """End the process at once, without what Python and MXNet do at exit."""
    _flush()
    os._exit(code)


def failure(error: Optional[BaseException]) -> str:
    """What others are told of a worker whose script such an exception ends; nothing if it is well.

    SystemExit with code 0 is well.
    """
    if error is None:
        return ""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r})" if error.code else ""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


class Ending:
    """Sees how this process's script ends, for the backend that connects it to others.

    A script that ends well leaves when all workers do (`close`). Where it fails, the others are
    told why (`abandon`), and the process ends at once, since Python's own way out would wait inside
    MXNet for them. An uncaught exception is a failure, and so is sys.exit with a code but 0.
    """

    def __init__(self) -> None:
        self._store: Any = None
        self._abandoned = False
        self._stay: Optional[Callable[[], None]] = None
        self._status: Any = None
        self._show, self._exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self._fail, self._note
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._forget)

    def concerns(self, store: Any) -> None:
        """From now on the end is this backend's concern; None: nobody's.

        Raises
        ------
        RuntimeError
            The process has abandoned one, or stays in one.
        """
        if self._abandoned:
            raise RuntimeError(
                "this process has left its cluster because of an error, and can join no other"
            )
        if self._stay is not None:
            raise RuntimeError(
                "a process can join only one cluster with PS_RESEND=1, since ps-lite cannot be "
                "stopped then; do without suspend(), or PS_RESEND"
            )
        self._store = store

    def stays(self, stay: Callable[[], None]) -> None:
        """The process stays connected to the last. In the end `stay` returns when it may go."""
        self._store, self._stay = None, stay

    def abandoned(self) -> None:
        """The backend has left without the others: the process can only end now."""
        self._abandoned = True

    def _fail(
        self, kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
    ) -> None:
        self._show(kind, error, trace)
        if self._store is not None and not _interactive():
            self._leave(failure(error), exit_code(error))

    def _note(self, status: Any = None) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            self._status = status
        self._exit(status)

    def _finish(self) -> None:
        code = self._status if isinstance(self._status, int) else int(self._status is not None)
        error = getattr(sys, "last_value", None) if not _interactive() else None
        if self._store is not None:
            if self._abandoned:
                end(code or 1)
            if code:
                self._leave(failure(SystemExit(self._status)), code)
            if error is not None:  # which an excepthook after ours has shown
                self._leave(failure(error), exit_code(error))
            try:
                self._store.close()
            except BaseException as failed:
                self._fail(type(failed), failed, failed.__traceback__)
        if self._stay is not None:
            self._stay()
            end(code or (exit_code(error) if error is not None else 0))

    def _leave(self, why: str, code: int) -> NoReturn:
        if not self._abandoned:
            self._store.abandon(why)
        end(code)

    def _forget(self) -> None:
        self._store = self._stay = None


def _interactive() -> bool:
    return hasattr(sys, "ps1")


_ending: Optional[Ending] = None


def ending() -> Ending:
    """The one of this process."""
    global _ending
    if _ending is None:
        _ending = Ending()
    return _ending
