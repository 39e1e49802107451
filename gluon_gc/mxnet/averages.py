"""The averages of an exchange, until they are applied or taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from mxnet.ndarray import NDArray


@dataclass
class Averages:
    """The averages of a trainer's last exchange, until they are applied or taken back.

    Parameters
    ----------
    indices : sequence of int
        The parameters whose gradients were exchanged.
    fresh : sequence of NDArray
        The arrays of the parameters whose gradients were fresh. They are stale since the exchange,
        so that no later exchange takes an average for a fresh gradient.
    stale : str
        The first parameter whose stale gradient was averaged like a fresh one; "": there is none.
    excluded : bool
        Whether the exchange is inside `not_applied`, so that it is taken back in any case.
    skipped : bool
        Whether all workers leave out this step. There is then nothing to apply or to take back.
    """

    indices: Sequence[int] = ()
    fresh: Sequence[NDArray] = ()
    stale: str = ""
    excluded: bool = False
    skipped: bool = False
