"""The batch sizes that gradients are divided by, before compression or after it."""

from __future__ import annotations

from typing import Optional


class BatchSizes:
    """Checks that residuals and momentum always have the same unit.

    A division after compression does not change them. They belong to sums over a batch then, so
    the divisor must stay the same.
    """

    def __init__(self) -> None:
        self._before: Optional[float] = None  # the divisor before the latest compression
        self._after: Optional[float] = None  # the divisor after the compression before that

    def divided(self, batch_size: Optional[float]) -> None:
        """Gradients were divided by a batch size before compression, or not at all if None."""
        self._before = batch_size
        if batch_size is not None:
            self._after = 1

    def divisor(self, batch_size: float) -> float:
        """The divisor that is left for the averages of a batch.

        Raises
        ------
        ValueError
            They are already divided by another batch size.
        """
        if self._before is None:
            return batch_size
        if batch_size != self._before:
            raise ValueError(
                f"batch_size must be {self._before!r} as in allreduce_grads, got {batch_size!r}"
            )
        return 1

    def changed(self, divisor: float) -> bool:
        """Whether averages were divided by another number before. Remembers this one."""
        before, self._after = self._after, divisor
        return before not in (None, divisor)
