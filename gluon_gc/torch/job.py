"""Tensors on their way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Collection, Dict, List, Mapping, Optional, Set

import torch

from ..plan import Slice
from .header import SAME, Stamp
from .staging import Staged


@dataclass
class Job:
    """Tensors whose sums over workers replace them.

    Parameters
    ----------
    staged : Staged
    scale : float
        Multiplies what this worker adds.
    ratios : mapping
        Of tensors, the previous learning rate over the current one, where it is not 1.
    done : callable, optional
        Is told the job, and an error or None, on another thread.
    absent : collection of str
        The tensors that this worker has no gradient of: their values are zeros.
    stamp : Stamp
        Must be the same on all workers.
    keeps : bool
        Whether coders keep copies of their state first, so that the step can be taken back.

    Attributes
    ----------
    nonfinite : list of str
        The tensors whose sum has a NaN or an infinity.
    outcome : Stamp
        Of comparing the stamps.
    unused : set of str
        The tensors that no worker has a gradient of: nothing has changed for them.
    transfers : int
        Under way.
    """

    staged: Staged
    scale: float
    ratios: Mapping[str, float]
    done: Optional[Callable[["Job", Optional[BaseException]], None]] = None
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
        """Where they are in memory."""
        itemsize = self.staged.values[piece.tensor].itemsize
        return self._begins[piece.tensor] + piece.begin * itemsize
