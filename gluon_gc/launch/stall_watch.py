"""Finds a stall from within a worker, for jobs without a scheduler, as with Horovod."""

from __future__ import annotations

import threading

from .. import env
from ..log import logger
from .leaving import die
from .progress import Progress
from .stall import Stalls

_TICK = 1.0  # seconds between two looks at the progress


class StallWatch(Stalls):
    """A thread that warns if this worker waits too long, and then ends the process.

    It cannot know which other workers are late.

    Parameters
    ----------
    name : str
        The name of this worker.
    progress : Progress
        The progress of this worker.
    """

    def __init__(self, name: str, progress: Progress) -> None:
        super().__init__(str, env.get("GLUON_GC_STALL_SECONDS"), env.get("GLUON_GC_TIMEOUT"))
        self.expect([name])
        self._name, self._progress = name, progress
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="gluon_gc stall watch", daemon=True).start()

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(_TICK):
            self.heed(self._name, **self._progress.now())
            warning, problem = self.look(_TICK)
            if problem:
                die(f"{self._name} ends: {problem}")
            if warning:
                logger.warning("%s: %s", self._name, warning)

    def _described(self, seconds: float) -> str:
        call = self._awaited_call()
        return f"no exchange has finished for {seconds:g} s: waiting for other workers{call}"
