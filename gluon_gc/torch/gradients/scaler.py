"""GradScalers: they wait for averages before they unscale them, and are watched if unknown."""

from __future__ import annotations

import weakref
from functools import lru_cache, wraps
from typing import Any, Iterable

import torch
from torch.optim import Optimizer

from .optimizer_hooks import steps_any


def if_enabled(scaler: torch.amp.GradScaler | None) -> torch.amp.GradScaler | None:
    """Return a scaler, or None if it is disabled. A disabled one neither scales nor skips steps."""
    return scaler if scaler is not None and scaler.is_enabled() else None


class _Unscale:
    """A scaler's `unscale_` method that first waits for a DistributedOptimizer's averages."""

    def __init__(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        self._given, self._optimizer = (scaler, optimizer), optimizer
        self._unscale = scaler.unscale_

    def __call__(self, optimizer: Optimizer) -> None:
        if optimizer is self._optimizer:
            optimizer.synchronize()
        self._unscale(optimizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Unscale, self._given


def wait_before_unscaling(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
    """Make a scaler wait for an optimizer's averages."""
    scaler.unscale_ = _Unscale(scaler, optimizer)


class ScaleWatch:
    """Raises an error if a GradScaler, which nobody has passed, changes the scale of gradients.

    Residuals and momentum are in units of the loss scale then. `function` names the public function
    that takes the scaler, for the error message.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], function: str) -> None:
        self._ids, self._function = set(map(id, parameters)), function
        self._scales: weakref.WeakKeyDictionary[Optimizer, float] = weakref.WeakKeyDictionary()
        _report_steps()
        _watches.add(self)

    def stepping(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        """Compare the scale with that of the optimizer's last step."""
        if not steps_any(optimizer, self._ids):
            return
        scale = scaler.get_scale()
        before = self._scales.setdefault(optimizer, scale)
        if scale != before:
            raise RuntimeError(
                f"the scale of the GradScaler has changed from {before} to {scale}, but residuals "
                f"and momentum are in units of the old one: pass grad_scaler to {self._function}"
            )

    def close(self) -> None:
        _watches.discard(self)


_watches: weakref.WeakSet[ScaleWatch] = weakref.WeakSet()


@lru_cache(maxsize=None)  # once
def _report_steps() -> None:
    """Let all GradScalers report their steps to `_watches`. An optimizer does not know them."""
    step = torch.amp.GradScaler.step

    @wraps(step)
    def reporting_step(
        scaler: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        if scaler.is_enabled():
            for watch in list(_watches):
                watch.stepping(scaler, optimizer)
        return step(scaler, optimizer, *args, **kwargs)

    torch.amp.GradScaler.step = reporting_step
