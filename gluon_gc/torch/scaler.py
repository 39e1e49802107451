"""Makes a GradScaler wait for averages before it unscales them."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch.optim import Optimizer


class _Unscale:
    """A scaler's `unscale_` method that first waits for one optimizer's averages.

    Parameters
    ----------
    scaler : GradScaler
    optimizer : Optimizer
        The result of `DistributedOptimizer`.
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
    """Make a scaler wait for an optimizer's averages."""
    scaler.unscale_ = _Unscale(scaler, optimizer)
