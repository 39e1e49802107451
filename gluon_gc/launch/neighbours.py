"""How the workers of a machine notice that one of them has ended, where no scheduler does."""

from __future__ import annotations

import select
import threading
from contextlib import contextmanager
from typing import Iterator

import numpy as np

from .leaving import die
from .machine import Machine

_MOST_BYTES = 4096  # of last words
_PATIENCE = 10  # seconds until an end must have been seen


class Neighbours:
    """A thread that ends this process, and says why, when another worker ends before its time.

    Parameters
    ----------
    machine : Machine
        Of the workers, all of whom make it together.
    """

    def __init__(self, machine: Machine) -> None:
        self._name = f"worker {machine.rank}"
        self._words = machine.share(_MOST_BYTES)  # of the first who ended
        self._leaving = False
        self._names = {link.fileno(): f"worker {rank}" for rank, link in machine.links.items()}
        self._thread = threading.Thread(target=self._watch, name="gluon_gc neighbours", daemon=True)
        self._thread.start()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """An error in it that comes of another's end is told as that."""
        try:
            yield
        except (ConnectionError, EOFError):
            self._thread.join(_PATIENCE)
            raise

    def leave(self) -> None:
        """From now on others may end."""
        self._leaving = True

    def abandon(self, why: str) -> None:
        """This process ends, and all others do."""
        self._leaving = True
        self._say(f"{self._name} has failed: {why}")

    def _watch(self) -> None:
        ends = select.poll()
        for descriptor in self._names:
            ends.register(descriptor, select.POLLRDHUP)
        ((descriptor, _), *_) = ends.poll()
        if not self._leaving:
            # Who is connected to the first alone sees its end, and it tells whose came before.
            self._say(f"{self._names[descriptor]} is gone")
            die(f"{self._name} ends: {self._said()}")

    def _say(self, words: str) -> None:
        if not self._said():
            data = words.encode()[:_MOST_BYTES]
            self._words[: len(data)] = np.frombuffer(data, np.uint8)

    def _said(self) -> str:
        return self._words.tobytes().rstrip(b"\0").decode(errors="ignore")
