"""The order in which gradients are averaged, so that the next forward can start early."""

from __future__ import annotations

import time
from typing import List, Optional, Sequence, TypeVar

from torch.futures import Future

Item = TypeVar("Item")


class Pace:
    """Measures the share of a step's averaging time that backward hides.

    Attributes
    ----------
    begun : int
        The number of steps that have begun.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._shares: List[float] = []
        self._start = self._returned = self._done = 0.0

    def begin(self) -> None:
        """Record that averaging begins in a new step. The previous step is complete."""
        if self._returned and self._done:  # backward has computed all gradients
            backward, whole = self._returned - self._start, self._done - self._start
            self._shares.append(backward / max(backward, whole))
        self.begun += 1
        self._start, self._returned, self._done = time.perf_counter(), 0.0, 0.0

    def follow(self, average: Future) -> None:
        """Record when an average is complete."""
        average.add_done_callback(lambda done: self._note())

    def _note(self) -> None:
        self._done = time.perf_counter()

    def backward_returns(self) -> None:
        """Record that backward has computed all gradients."""
        self._returned = time.perf_counter()

    def share(self) -> Optional[float]:
        """Return the share of the last measured step, or None if no step was measured."""
        return self._shares[-1] if self._shares else None


def reordered(items: Sequence[Item], sizes: Sequence[int], share: float) -> List[Item]:
    """Reverse the order of the last items; the first ones, with this share of the bytes, stay.

    Examples
    --------
    >>> reordered("dcba", [1, 1, 1, 1], 0.5)
    ['d', 'c', 'a', 'b']
    """
    kept, total = 0, 0
    while kept < len(items) and total < share * sum(sizes):
        total += sizes[kept]
        kept += 1
    return [*items[:kept], *reversed(items[kept:])]
