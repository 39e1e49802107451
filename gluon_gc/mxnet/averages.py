"""The averages of an exchange, until they are applied or taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from mxnet.ndarray import NDArray


@dataclass
class Averages:
    """The averages of a trainer's last exchange, until they are applied or taken back.

    Parameters
    ----------
    indices : sequence of int
        The parameters whose gradients were exchanged.
    batch_size : float, optional
        The gradients were divided by it before the exchange. None: they are sums over a batch.
    fresh : sequence of NDArray
        The arrays of the parameters whose gradients were fresh. They are stale since the exchange,
        so that no later exchange takes an average for a fresh gradient.
    stale : str
        The first parameter whose stale gradient was averaged like a fresh one; "": there is none.
    excluded : bool
        Whether the exchange is inside `not_applied`, so that it is taken back in any case.
    tried : bool
        Whether an update has begun to apply them. If it raises, no other update may apply them.
    skipped : bool
        Whether all workers leave out this step. There is then nothing to apply or to take back.
    """

    indices: Sequence[int] = ()
    batch_size: Optional[float] = None
    fresh: Sequence[NDArray] = ()
    stale: str = ""
    excluded: bool = False
    tried: bool = False
    skipped: bool = False

    def divisor(self, batch_size: float) -> float:
        """Return the number that the averages are still to be divided by.

        Raises
        ------
        ValueError
            They are already divided by another batch size.
        """
        if self.batch_size is None:
            return batch_size
        if batch_size != self.batch_size:
            raise ValueError(
                f"batch_size must be {self.batch_size!r} as in allreduce_grads, got {batch_size!r}"
            )
        return 1
