"""Job: tensors that are being exchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Collection, List, Mapping, Optional, Set

import torch
from torch.futures import Future

from .. import kernels
from ..plan import Slice
from . import header
from .coder import Coder
from .header import SAME, Stamp
from .staging import Staged

Done = Callable[[Any, Optional[BaseException]], None]


@dataclass
class Job:
    """Tensors whose values are replaced by their sums over workers.

    Parameters
    ----------
    staged : Staged
    scale : float
        The factor by which this worker's values are multiplied.
    ratios : mapping of str to float
        For each tensor, the previous learning rate divided by the current one. A missing ratio is
        1.
    done : callable, optional
        Called on another thread at the end, with the job, and with an error or None.
    absent : collection of str
        The tensors without a gradient on this worker. Their values are zeros.
    stamp : Stamp
        Must be the same on all workers.
    continues : collection of str, optional
        The tensors whose last exchange this one continues, see `Coder.turn`. None: this exchange
        cannot be taken back.

    Attributes
    ----------
    number : int
        The number of jobs that the exchange has started before this one.
    nonfinite : list of str
        The tensors whose sum has a NaN or an infinity.
    outcome : Stamp
        The result of comparing the stamps of all workers.
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
    continues: Optional[Collection[str]] = None
    number: int = 0
    nonfinite: List[str] = field(default_factory=list)
    outcome: Stamp = SAME
    unused: Set[str] = field(default_factory=set)
    transfers: int = 0

    def __post_init__(self) -> None:
        self._begins = {n: (t.data_ptr(), t.itemsize) for n, t in self.staged.values.items()}

    def state_for(self, coder: Coder, tensor: str) -> kernels.StateOfCall:
        """Return where a coder reads and writes its state when it compresses part of a tensor."""
        if self.continues is None:
            return coder.in_place()
        return coder.turn(tensor in self.continues)

    def stamp_of(self, identity: int) -> Stamp:
        """Return the stamp for a transfer with this `header.identity`."""
        return self.stamp._replace(tensors=header.checksum_of_job(self.number, identity))

    def of(self, piece: Slice) -> torch.Tensor:
        """Return the values of a slice."""
        return self.staged.values[piece.tensor][piece.begin : piece.end]

    def address(self, piece: Slice) -> int:
        """Return the memory address of the values of a slice."""
        begin, itemsize = self._begins[piece.tensor]
        return begin + piece.begin * itemsize


def future_on(device: torch.device) -> Future[Any]:
    """Return a future whose result is on this device."""
    return Future(devices=[device] if device.type == "cuda" else [])


def resolving(future: Future[Any], result: Callable[[Any], Any]) -> Done:
    """Return a `done` for a job that sets the result of a future.

    `result` computes it from the job. If `result` raises, `done` is called again with the error.
    """

    def done(job: Job, error: Optional[BaseException]) -> None:
        if error is None:
            future.set_result(result(job))
        else:
            future.set_exception(error)

    return done
