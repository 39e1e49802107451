"""PatientStore: a store whose calls are repeated until it answers."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any, Callable, Iterable, TypeVar

from ..log import logger
from .store import AwayError, ConflictError, Entry, Store, StoreError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between two attempts
_SILENT = 60.0  # seconds after which a call that has not ended counts as a failing store
_AWAY = 600.0  # seconds until objects that are missing count as removed
_CONFLICT_PAUSE, _MOST_CONFLICTS = 0.1, 20  # a conflict is as short as a request
Answer = TypeVar("Answer")


class ReplacedError(RuntimeError):
    """The run's objects have been removed while this worker was in it."""


def replaced(url: str) -> ReplacedError:
    return ReplacedError(
        f"the run at {url} was removed while this worker was in it: start all workers again, at a "
        "new URL if others have begun another run there"
    )


class StoppedError(ConnectionError):
    """The process leaves, so nothing is repeated any more."""


class PatientStore:
    """Repeats the calls of a `Store`, for several threads, until it answers or `stop` is called.

    It knows for how long a round has been hindered: because the store does not answer, or because
    too few workers are there. ReplacedError if the store lacks what nobody removes for `_AWAY`
    seconds. While `repeats` is False, it raises the store's errors, but repeats
    the creation of an object that another worker creates at the same time.
    """

    repeats = False

    def __init__(self, store: Store) -> None:
        self._store, self._stopped = store, threading.Event()
        self._lock = threading.Lock()
        self._hindered_since: float | None = None
        self._failing_since: float | None = None
        self.answered = 0.0  # when the store last did
        self._pending: dict[int, float] = {}  # when each thread's call began

    def impatient(self) -> PatientStore:
        """The same store, which raises its errors."""
        return PatientStore(self._store)

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def hindered_seconds(self) -> float:
        """For how long no round could go on; 0 if one can."""
        now, since = time.monotonic(), self._hindered_since
        silent = [began for began in list(self._pending.values()) if now - began > _SILENT]
        return max((now - began for began in (since, *silent) if began is not None), default=0.0)

    def put(self, name: str, data: bytes, create: bool = False) -> bool:
        return self._repeat(partial(self._store.put, name, data, create))

    def get(self, name: str) -> bytes | None:
        return self._repeat(partial(self._store.get, name))

    def get_kept(self, name: str) -> bytes:
        """Read an object that nobody removes."""
        return self._repeat(partial(self._store.get_kept, name))

    def list(self, prefix: str) -> list[Entry]:
        return self._repeat(partial(self._store.list, prefix))

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)
        if names:
            self._repeat(partial(self._store.delete, names))

    def delete_partial(self, prefix: str, seconds: float) -> None:
        self._repeat(partial(self._store.delete_partial, prefix, seconds))

    def sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise StoppedError("this worker leaves")

    def stop(self) -> None:
        self._stopped.set()

    def note_waiting(self) -> None:
        """Note that a round cannot go on because of other workers."""
        with self._lock:
            self._hindered_since = self._hindered_since or time.monotonic()

    def note_progress(self) -> None:
        with self._lock:
            self._hindered_since = None

    def _repeat(self, call: Callable[[], Any]) -> Any:
        pause, conflicts = _FIRST_PAUSE, 0
        away_since: float | None = None
        while True:
            thread = threading.get_ident()
            began = self._pending[thread] = time.monotonic()
            try:
                answer = call()
            except StoreError as error:
                # Two workers may decide, or join a new run, at once.
                conflicts += isinstance(error, ConflictError)
                if isinstance(error, ConflictError) and conflicts <= _MOST_CONFLICTS:
                    self.sleep(_CONFLICT_PAUSE)
                    continue
                if not self.repeats:
                    raise
                away_since = (away_since or began) if isinstance(error, AwayError) else None
                if away_since is not None and began - away_since > _AWAY:
                    raise replaced(self.url) from None
                self._note_failure(error, began)
                self.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
            else:
                self._note_answer()
                return answer
            finally:
                self._pending.pop(thread, None)

    def _note_failure(self, error: StoreError, began: float) -> None:
        with self._lock:
            # Another kind of round may have noted progress since the store began to fail.
            self._hindered_since = self._hindered_since or began
            if self._failing_since is None:
                self._failing_since = began
                silent = time.monotonic() - began
                at = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
                logger.warning("%s. Training goes on locally, since %s", error, at)

    def _note_answer(self) -> None:
        self.answered = time.monotonic()
        if self._failing_since is None:
            return
        with self._lock:
            since, self._failing_since = self._failing_since, None
            if since is not None:
                self._hindered_since = None
                seconds = time.monotonic() - since
                logger.warning("%s answers again, after %.0f s", self._store.url, seconds)
