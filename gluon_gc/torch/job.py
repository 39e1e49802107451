"""Tensors on their way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional

import torch

from ..plan import Slice
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

    Attributes
    ----------
    nonfinite : list of str
        The tensors whose sum has a NaN or an infinity.
    transfers : int
        Under way.
    """

    staged: Staged
    scale: float
    ratios: Mapping[str, float]
    done: Optional[Callable[["Job", Optional[BaseException]], None]] = None
    nonfinite: List[str] = field(default_factory=list)
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
