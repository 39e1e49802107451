"""The order in which gradients are averaged, so that the next forward can begin early."""

from __future__ import annotations

import time
from typing import List, Optional, Sequence, TypeVar

from torch.futures import Future

Item = TypeVar("Item")


class Pace:
    """Measures the share of a step's averaging that backward hides.

    Attributes
    ----------
    begun : int
        How many steps have begun.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._shares: List[float] = []
        self._start = self._returned = self._done = 0.0

    def begin(self) -> None:
        """Note that the first gradients of a step are handed over; the step before is complete."""
        if self._returned and self._done:  # backward has made all gradients
            backward, whole = self._returned - self._start, self._done - self._start
            self._shares.append(backward / max(backward, whole))
        self.begun += 1
        self._start, self._returned, self._done = time.perf_counter(), 0.0, 0.0

    def follow(self, average: Future) -> None:
        """Note when an average is there."""
        average.add_done_callback(lambda done: self._note())

    def _note(self) -> None:
        self._done = time.perf_counter()

    def backward_returns(self) -> None:
        """Note that backward has made all gradients."""
        self._returned = time.perf_counter()

    def share(self) -> Optional[float]:
        """That of the last step that was measured; None if none was."""
        return self._shares[-1] if self._shares else None


def reordered(items: Sequence[Item], sizes: Sequence[int], share: float) -> List[Item]:
    """Reverse the items behind the first ones, which hold this share of the bytes.

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
