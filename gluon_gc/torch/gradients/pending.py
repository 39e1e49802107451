"""Pending: waits for exchanges whose futures nobody may wait for."""

from __future__ import annotations

import threading
from typing import Any, Callable

from torch.futures import Future

from ...exchange.job import Done, Result
from ...exchange.pipeline import Stage
from ..transport.staging import Staged, resolving


class Pending:
    """The exchanges that have started, and have neither a result nor an error yet.

    After an error in one of them, a script may go on without waiting for the others.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: set[Future[Any]] = set()

    def start(
        self,
        exchange: Callable[[Done], None],
        future: Future[Any],
        result: Callable[[Result], Any],
        staged: Staged | None = None,
    ) -> None:
        """Start an exchange, given a function that gets its `Done`; see `resolving`."""
        with self._changed:
            self._under_way.add(future)

        def ended() -> None:
            with self._changed:
                self._under_way.discard(future)
                self._changed.notify_all()

        def result_before_callbacks(found: Result) -> Any:
            try:
                return result(found)
            finally:
                ended()

        resolve = resolving(future, result_before_callbacks, staged)

        def done(found: Result | None, error: BaseException | None) -> None:
            if error is not None:
                ended()
            resolve(found, error)

        try:
            exchange(done)
        except BaseException:
            ended()
            raise

    def wait(self) -> None:
        """Wait until no exchange is pending. A callback of a future does not wait.

        It may be what the exchanges wait for.
        """
        if not isinstance(threading.current_thread(), Stage):
            with self._changed:
                self._changed.wait_for(lambda: not self._under_way)
