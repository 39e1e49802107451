"""Lets the workers of a machine notice the end of another worker, without a scheduler."""

from __future__ import annotations

import select
import threading
from contextlib import contextmanager
from typing import Iterator, List, Tuple

import numpy as np

from .leaving import die, left_early
from .machine import Machine

_MOST_BYTES = 4096  # limit of a reason
_TICK_MILLISECONDS = 500  # time between two looks at the workers that have left
_NOTICE_SECONDS = 10  # time in which the thread must notice the end of a worker


class Neighbours:
    """A thread that ends this process, with a reason, if another worker ends too early.

    Parameters
    ----------
    machine : Machine
        The connections to the other workers. All workers create this object together.
    """

    def __init__(self, machine: Machine) -> None:
        self._name = f"worker {machine.rank}"
        self._machine = machine
        self._words = machine.share(_MOST_BYTES)  # the reason, from the first worker that sets it
        self._left = machine.share(4 * machine.size).view(np.uint32)  # 1 + a worker's exchanges
        self._exchanges = 0
        self._leaving = self._abandons = False
        self._names = {link.fileno(): f"worker {rank}" for rank, link in machine.links.items()}
        self._thread = threading.Thread(target=self._watch, name="gluon_gc neighbours", daemon=True)
        self._thread.start()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Report a connection error in the block as the end of another worker, if it is one."""
        try:
            yield
        except (ConnectionError, EOFError):
            self._thread.join(_NOTICE_SECONDS)
            raise
        self._check()  # the block may have received the message of a worker that leaves

    def next_exchange(self) -> None:
        """Count an exchange that needs all workers. Ends the process if a worker has left."""
        self._exchanges += 1
        self._check()

    def leave(self) -> None:
        """Wait until all workers leave. Their ends are no failures from now on."""
        self._leaving = True
        self._left[self._machine.rank] = 1 + self._exchanges
        with self.heeded():
            self._machine.gather(b"")
        if not self._left.all():  # another worker has begun an exchange instead, and ends all
            self._thread.join()

    def abandon(self, reason: str) -> None:
        """End all other workers, because this process ends."""
        self._abandons = True
        self._set_reason(f"{self._name} has failed: {reason}")

    def _watch(self) -> None:
        ends = select.poll()
        for descriptor in self._names:
            ends.register(descriptor, select.POLLRDHUP)
        ended: List[Tuple[int, int]] = []
        while not ended:
            self._check()
            if self._left.all():
                return
            ended = ends.poll(_TICK_MILLISECONDS)
        ((descriptor, _), *_) = ended
        if not self._leaving:
            # The failed worker may have set its own reason already. Then this one is dropped.
            self._set_reason(f"{self._names[descriptor]} is gone")
        self._end_with_reason()

    def _check(self) -> None:
        """End the process if it has begun an exchange without a worker that has left."""
        for rank, left in enumerate(self._left.tolist()):
            if left and self._exchanges >= left:
                self._set_reason(left_early(f"worker {rank}", left - 1, self._name))
                self._end_with_reason()

    def _end_with_reason(self) -> None:
        if self._reason() and not self._abandons:
            die(f"{self._name} ends: {self._reason()}")

    def _set_reason(self, words: str) -> None:
        if not self._reason():
            data = words.encode()[:_MOST_BYTES]
            self._words[: len(data)] = np.frombuffer(data, np.uint8)

    def _reason(self) -> str:
        return self._words.tobytes().rstrip(b"\0").decode(errors="ignore")
