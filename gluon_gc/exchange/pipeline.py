"""Pipeline: stages of work on separate threads, which handle all items in the same order."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import Any, Callable, Sequence

_JOIN_SECONDS = 5  # seconds to wait for each thread at shutdown


class Stage(threading.Thread):
    """A thread of a pipeline."""


class Pipeline:
    """Calls each stage with each item, in the order of the `put` calls.

    All workers put the same items in the same order. So each stage sends its messages in the same
    order on all workers. `done` is called with each item that has passed all stages. After an
    error, no stage is called again: `broken` is called with the first error when it is raised, and
    `failed` with each item that has not passed all stages, and the error.
    """

    def __init__(
        self,
        stages: Sequence[Callable[[Any], None]],
        done: Callable[[Any], None],
        failed: Callable[[Any, BaseException], None],
        broken: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        queues = [queue.SimpleQueue() for _ in stages]
        self._first = queues[0]
        calls = _Calls(done, failed, broken)
        threads = [
            Stage(
                target=calls.run, args=(stage, *pair), name=f"gluon_gc stage {number}", daemon=True
            )
            for number, (stage, pair) in enumerate(zip(stages, zip(queues, [*queues[1:], None])))
        ]
        for thread in threads:
            thread.start()
        # Python must not exit while a thread runs C++ code. A pipeline that is garbage ends too.
        self._end = weakref.finalize(self, _end, queues[0], threads)

    def put(self, item: Any) -> None:
        """Add an item at the end of the first stage's queue."""
        self._first.put(item)

    def close(self) -> None:
        """Stop the threads after they have handled all items."""
        self._end()


def _end(first: queue.SimpleQueue, threads: Sequence[threading.Thread]) -> None:
    """Stop the threads of a pipeline, given the queue of its first stage."""
    first.put(None)
    for thread in threads:
        if thread is not threading.current_thread():  # it may have freed the pipeline
            thread.join(_JOIN_SECONDS)


class _Calls:
    """The loops of a pipeline's threads, which do not refer to the pipeline."""

    def __init__(
        self,
        done: Callable[[Any], None],
        failed: Callable[[Any, BaseException], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._done, self._failed, self._broken = done, failed, broken
        self._error: BaseException | None = None

    def run(
        self,
        stage: Callable[[Any], None],
        items: queue.SimpleQueue,
        following: queue.SimpleQueue | None,
    ) -> None:
        """Call a stage with each item, and pass the item on."""
        while True:
            item = items.get()
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
