"""Lets the workers of a machine notice the end of another worker, without a scheduler."""

from __future__ import annotations

import select
import threading
from contextlib import contextmanager
from typing import Iterator

import numpy as np

from .leaving import die
from .machine import Machine

_MOST_BYTES = 4096  # limit of a reason
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
        self._words = machine.share(_MOST_BYTES)  # the reason, from the first worker that sets it
        self._leaving = False
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

    def leave(self) -> None:
        """From now on, do not treat the end of another worker as a failure."""
        self._leaving = True

    def abandon(self, reason: str) -> None:
        """End all other workers, because this process ends."""
        self._leaving = True
        self._set_reason(f"{self._name} has failed: {reason}")

    def _watch(self) -> None:
        ends = select.poll()
        for descriptor in self._names:
            ends.register(descriptor, select.POLLRDHUP)
        ((descriptor, _), *_) = ends.poll()
        if not self._leaving:
            # The failed worker may have set its own reason already. Then this one is dropped.
            self._set_reason(f"{self._names[descriptor]} is gone")
            die(f"{self._name} ends: {self._reason()}")

    def _set_reason(self, words: str) -> None:
        if not self._reason():
            data = words.encode()[:_MOST_BYTES]
            self._words[: len(data)] = np.frombuffer(data, np.uint8)

    def _reason(self) -> str:
        return self._words.tobytes().rstrip(b"\0").decode(errors="ignore")
