"""Pipeline: stages of work on separate threads, which handle all items in the same order."""

from __future__ import annotations

import atexit
import queue
import threading
from typing import Any, Callable, Optional, Sequence

_PATIENCE = 5  # seconds to wait for each thread at shutdown


class Pipeline:
    """Calls each stage with each item, in the order of the `put` calls.

    All workers put the same items in the same order. So each stage uses its process group in the
    same order on all workers. After an error, no stage is called again.

    Parameters
    ----------
    stages : sequence of callable
    done : callable
        Called with each item that has passed all stages.
    failed : callable
        Called with each item that has not, and with the error.
    broken : callable
        Called with the first error, when it is raised.
    """

    def __init__(
        self,
        stages: Sequence[Callable[[Any], None]],
        done: Callable[[Any], None],
        failed: Callable[[Any, BaseException], None],
        broken: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._done, self._failed, self._broken, self._error = done, failed, broken, None
        self._queues = [queue.SimpleQueue() for _ in stages]
        self._threads = [
            threading.Thread(target=self._run, args=(number, stage), daemon=True)
            for number, stage in enumerate(stages)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)  # Python must not exit while a thread runs C++ code

    def put(self, item: Any) -> None:
        """Add an item at the end of the first stage's queue."""
        self._queues[0].put(item)

    def close(self) -> None:
        """Stop the threads after they have handled all items."""
        self._queues[0].put(None)
        for thread in self._threads:
            thread.join(_PATIENCE)
        atexit.unregister(self.close)

    def _run(self, number: int, stage: Callable[[Any], None]) -> None:
        following: Optional[queue.SimpleQueue] = None
        if number + 1 < len(self._queues):
            following = self._queues[number + 1]
        while True:
            item = self._queues[number].get()
            if item is not None:
                self._call(stage, item, following is None)
            if following is not None:
                following.put(item)
            if item is None:
                return
            del item  # the thread must not keep its tensors until the next item arrives

    def _call(self, stage: Callable[[Any], None], item: Any, last: bool) -> None:
        if self._error is None:
            try:
                stage(item)
                if last:
                    self._done(item)
                return
            except BaseException as error:  # any error, because somebody waits for the item
                self._error = error
                self._broken(error)
        if last:
            self._failed(item, self._error)
