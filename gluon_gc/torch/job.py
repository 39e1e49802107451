"""Tensors that are being exchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Set

import torch
from torch.futures import Future

from ..plan import Slice
from .header import SAME, Stamp
from .staging import Staged

Done = Callable[[Any, Optional[BaseException]], None]


@dataclass
class Job:
    """Tensors that are replaced by their sums over workers.

    Parameters
    ----------
    staged : Staged
    scale : float
        The factor of this worker's values.
    ratios : mapping
        By tensor, the previous learning rate over the current one. Ratios of 1 are left out.
    done : callable, optional
        Called on another thread with the job, and an error or None.
    absent : collection of str
        The tensors without a gradient on this worker. Their values are zeros.
    stamp : Stamp
        Must be the same on all workers.
    keeps : bool
        Whether coders keep copies of their state first, so that the step can be taken back.

    Attributes
    ----------
    nonfinite : list of str
        The tensors whose sum has a NaN or an infinity.
    outcome : Stamp
        The outcome of the comparison of stamps.
    unused : set of str
        The tensors without a gradient on any worker. Their residuals and momentum are unchanged.
    transfers : int
        The number of transfers under way.
    """

    staged: Staged
    scale: float
    ratios: Mapping[str, float]
    done: Optional[Done] = None
    absent: Collection[str] = ()
    stamp: Stamp = SAME
    keeps: bool = False
    nonfinite: List[str] = field(default_factory=list)
    outcome: Stamp = SAME
    unused: Set[str] = field(default_factory=set)
    transfers: int = 0

    def __post_init__(self) -> None:
        self._begins: Dict[str, int] = {n: t.data_ptr() for n, t in self.staged.values.items()}

    def of(self, piece: Slice) -> torch.Tensor:
        """The values of a slice."""
        return self.staged.values[piece.tensor][piece.begin : piece.end]

    def address(self, piece: Slice) -> int:
        """The address of the values of a slice."""
        itemsize = self.staged.values[piece.tensor].itemsize
        return self._begins[piece.tensor] + piece.begin * itemsize


def future_on(device: torch.device) -> Future[Any]:
    """A future for a result on a device."""
    return Future(devices=[device] if device.type == "cuda" else [])


def resolving(future: Future[Any], result: Callable[[Any], Any]) -> Done:
    """The `done` of a job that gives its result to a future.

    `result` gets the job. If it raises, `done` is called again with its error.
    """

    def done(job: Job, error: Optional[BaseException]) -> None:
        if error is None:
            future.set_result(result(job))
        else:
            future.set_exception(error)

    return done
