"""Finds a stall from within a worker, where no scheduler sees all workers, as on Horovod."""

from __future__ import annotations

import threading

from .. import env
from ..log import logger
from .leaving import die
from .progress import Progress
from .stall import Stalls

_TICK = 1.0  # seconds between two looks at the progress


class StallWatch(Stalls):
    """A thread that warns when this worker waits too long, and then ends the process.

    Parameters
    ----------
    name : str
        The worker's name.
    progress : Progress
        The worker's own. The thread cannot know which other workers are late.
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
        return f"no exchange has finished for {seconds:g} s: other workers have not come{call}"
