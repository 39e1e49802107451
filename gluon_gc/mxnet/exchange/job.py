"""The gradients of one exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

from mxnet.ndarray import NDArray

from .gradient import Gradients


@dataclass
class Job:
    """Gradients that one exchange replaces by their sums over all workers.

    Parameters
    ----------
    gradients : Gradients
        By the names of declared tensors.
    scale : float
        Multiplies this worker's gradients, before momentum and compression.
    factor : NDArray, optional
        Another multiplier, for gradient clipping; float64, shape (1,).
    ratios : mapping
        For each tensor, previous learning rate / current one, where that is not 1. All tensors of a
        message have the same ratio.

    Attributes
    ----------
    step : int
        The number of the exchange, from 1, for the meters. `Exchange.start` sets it.
    """

    gradients: Gradients
    scale: float = 1.0
    factor: Optional[NDArray] = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    step: int = field(default=0, init=False)
