"""Has a GradScaler wait for averages before it unscales them."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch.optim import Optimizer


class _Unscale:
    """The method `unscale_` of a scaler, for a distributed optimizer among others.

    Parameters
    ----------
    scaler : GradScaler
    optimizer : Optimizer
        What `DistributedOptimizer` returned.
    """

    def __init__(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        self._given, self._optimizer = (scaler, optimizer), optimizer
        self._unscale = scaler.unscale_

    def __call__(self, optimizer: Optimizer) -> None:
        if optimizer is self._optimizer:
            optimizer.synchronize()
        self._unscale(optimizer)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _Unscale, self._given


def wait_before_unscaling(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
    """Have a scaler wait for an optimizer's averages."""
    scaler.unscale_ = _Unscale(scaler, optimizer)
