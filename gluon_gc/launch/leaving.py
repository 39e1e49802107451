"""Ends a process of the cluster: together with all others, or at once after an error."""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
from contextlib import suppress
from functools import lru_cache
from types import TracebackType
from typing import Any, Callable, NoReturn

from ..log import logger

ALONE = 69
"""The exit code of a restarted node when the other nodes did not come back."""


class AloneError(ConnectionError):
    """This node was restarted, but the other nodes did not come back."""


class NotNeededError(Exception):
    """This server was not needed: the workers trained with PyTorch."""


def die(message: str, code: int = 1) -> NoReturn:
    """Log the reason and end the process at once: its main thread may hang inside MXNet."""
    _flush()
    logger.critical(message)
    end(code)


def exit_code(error: BaseException) -> int:
    """The exit code of a process that ends with this exception."""
    return ALONE if isinstance(error, AloneError) else 1


def _flush() -> None:
    for stream, own in ((sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__)):
        # OSError: its reader has gone. ValueError: it is closed. AttributeError: it is None,
        # because it was closed before Python started.
        with suppress(OSError, ValueError, AttributeError):
            if isinstance(stream, io.StringIO):  # torch.distributed's excepthook collects output
                own.write(stream.getvalue())
                stream.truncate(0)
                stream = own
            stream.flush()


def end(code: int) -> NoReturn:
    """End the process at once, without the exit handlers of Python and MXNet."""
    _flush()
    os._exit(code)


def failure(error: BaseException | None) -> str:
    """Describe the exception that ended a script, for the other nodes; "" if it ended well."""
    if error is None:
        return ""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r})" if error.code else ""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def left_early(leaver: str, exchanges: int, other: str) -> str:
    """Why `other` ends: it has begun an exchange after `leaver` left after this number of them."""
    return (
        f"{leaver} has left after {exchanges} exchanges, but {other} has begun another: one script "
        "ended, or called sys.exit(), before the other"
    )


class Ending:
    """Watches the end of this process's script, and tells the backend that connects it to others.

    If the script ends well, the process leaves together with all workers (`backend.close`). If it
    fails, the other nodes get the reason (`backend.abandon`), and the process ends at once, because
    Python's own exit would wait inside MXNet for them. An uncaught exception is a failure, and so
    is sys.exit with a code other than 0.
    """

    def __init__(self) -> None:
        self._backend: Any = None
        self._abandoned = False
        self._stay: Callable[[], None] | None = None
        self._status: Any = None
        self._show, self._exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self._fail, self._note
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._forget)

    def set_backend(self, backend: Any) -> None:
        """Tell this backend about the end of the process. None: no backend."""
        if self._abandoned:
            raise RuntimeError(
                "this process has left its cluster because of an error, and cannot join another one"
            )
        if self._stay is not None:
            raise RuntimeError(
                "a process can join only one cluster with PS_RESEND=1, because ps-lite cannot be "
                "stopped then; leave out suspend() or PS_RESEND"
            )
        self._backend = backend

    def stays(self, stay: Callable[[], None]) -> None:
        """Keep the process connected until it exits. Then `stay` returns when it may end."""
        self._backend, self._stay = None, stay

    def abandoned(self) -> None:
        """Note that the backend has left without the others. The process can then only end."""
        self._abandoned = True

    def _fail(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._show(kind, error, trace)
        if self._backend is not None and not _interactive():
            self._leave(failure(error), exit_code(error))

    def _note(self, status: Any = None) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            self._status = status
        self._exit(status)

    def _finish(self) -> None:
        code = self._status if isinstance(self._status, int) else int(self._status is not None)
        error = getattr(sys, "last_value", None) if not _interactive() else None
        if self._backend is not None:
            if self._abandoned:
                end(code or 1)
            if code:
                self._leave(failure(SystemExit(self._status)), code)
            if error is not None:  # an excepthook that was set after ours has printed it
                self._leave(failure(error), exit_code(error))
            try:
                self._backend.close()
            except BaseException as failed:
                self._fail(type(failed), failed, failed.__traceback__)
        if self._stay is not None:
            self._stay()
            end(code or (exit_code(error) if error is not None else 0))

    def _leave(self, why: str, code: int) -> NoReturn:
        if not self._abandoned:
            self._backend.abandon(why)
        end(code)

    def _forget(self) -> None:
        self._backend = self._stay = None


def _interactive() -> bool:
    return hasattr(sys, "ps1")


@lru_cache(maxsize=None)
def ending() -> Ending:
    return Ending()
