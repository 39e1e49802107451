"""The gradients of one exchange, on their way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

from mxnet.ndarray import NDArray

from .gradient import Gradients


@dataclass
class Job:
    """Gradients whose sums over workers replace them.

    Parameters
    ----------
    gradients : Gradients
        By the names of tensors that were declared.
    scale : float
        Multiplies the gradients of this worker, before momentum and compression.
    factor : NDArray, optional
        Multiplies them too; float64, shape (1,).
    ratios : mapping
        By tensor, the previous learning rate over the current one, where it is not 1. All tensors
        of a message have the same.

    Attributes
    ----------
    step : int
        The number of the exchange, from 1, which meters record. `Exchange.start` sets it.
    """

    gradients: Gradients
    scale: float = 1.0
    factor: Optional[NDArray] = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    step: int = field(default=0, init=False)
