"""AMP's overflow check, made before compression and agreed on by all workers."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import mxnet as mx
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..agreement import Facts
from .gradient import legacy


class _Verdict:
    """Stands for a parameter whose gradient is finite or not, to ask a loss scaler with."""

    def __init__(self, finite: bool) -> None:
        self._grad = [mx.nd.array([0.0 if finite else float("inf")])]


class AgreedLossScaler:
    """AMP's loss scaler, which all workers update alike.

    Parameters
    ----------
    scaler : mxnet.contrib.amp.loss_scaler.LossScaler
        The one that `amp.init_trainer` made.
    total : callable
        Gives the sum of an array over all workers, who must have some facts in common.
    """

    def __init__(self, scaler: Any, total: Callable[[NDArray, Facts], NDArray]) -> None:
        self._scaler = scaler
        self._total = total
        self._overflow = False

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by."""
        return self._scaler.loss_scale

    def check(self, params: Sequence[Parameter], about: Facts) -> bool:
        """Whether a gradient of these overflowed on any worker in this step; waits for them."""
        gradients = [g for p in params if p.grad_req != "null" for g in legacy(p.list_grad())]
        overflow = mx.nd.zeros(1)
        for gradient in gradients:
            finite = mx.nd.multi_all_finite(gradient, num_arrays=1).as_in_context(overflow.context)
            overflow += 1 - finite
        found = self._total(overflow, about).asscalar()
        self._overflow = self._scaler.has_overflow([_Verdict(found == 0)])
        return self._overflow

    def has_overflow(self, params: Sequence[Parameter]) -> bool:
        """What `check` found; gluon.Trainer asks before it updates."""
        return self._overflow
