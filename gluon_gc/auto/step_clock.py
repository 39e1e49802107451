"""Measures the time of a training step without exchanges."""

from __future__ import annotations

import time
from typing import Callable, List

import numpy as np

_SKIPPED = 1  # the first step compiles kernels and allocates memory
_COUNTED = 5


class StepClock:
    """Measures the seconds from one call of a trainer's `step` to the next.

    Parameters
    ----------
    wait : callable
        Returns when this worker has done all the computation that it has queued.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait, self._calls = wait, 0
        self._times: List[float] = []

    def tick(self) -> bool:
        """Count a call of `step`. Return whether enough steps have been measured."""
        self._calls += 1
        if self._calls > _SKIPPED:
            self._wait()
            self._times.append(time.perf_counter())
        return len(self._times) > _COUNTED

    @property
    def seconds(self) -> float:
        """The median time of the measured steps, because a step may evaluate or save the model."""
        return float(np.median(np.diff(self._times)))
