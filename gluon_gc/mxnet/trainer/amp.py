"""AMP's overflow check: it runs before compression, and all workers share its result."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import mxnet as mx
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ...exchange.agreement import Facts
from ..exchange.gradient import legacy


class _Verdict:
    """A stand-in for a parameter, whose gradient is finite or not, for MXNet's loss scaler."""

    def __init__(self, finite: bool) -> None:
        self._grad = [mx.nd.array([0.0 if finite else float("inf")])]


class AgreedLossScaler:
    """AMP's loss scaler, which all workers update with the same result."""

    def __init__(self, scaler: Any, total: Callable[[NDArray, Facts], NDArray]) -> None:
        self._scaler = scaler
        self._total = total
        self._overflow = False

    @property
    def loss_scale(self) -> float:
        return self._scaler.loss_scale

    def check(self, params: Sequence[Parameter], about: Facts) -> bool:
        """Whether one of these gradients overflowed on any worker in this step; waits for them."""
        return self._decide(self._total(nonfinite_gradients(params), about))

    def check_alone(self, params: Sequence[Parameter]) -> bool:
        """Whether one of these gradients overflowed on this worker; waits for them."""
        return self._decide(nonfinite_gradients(params))

    def _decide(self, overflows: NDArray) -> bool:
        """Update the loss scale, given the number of overflows. Return whether there is one."""
        self._overflow = self._scaler.has_overflow([_Verdict(overflows.asscalar() == 0)])
        return self._overflow

    def has_overflow(self, params: Sequence[Parameter]) -> bool:
        """The result of the last `check`. gluon.Trainer asks for it before it updates."""
        return self._overflow


def nonfinite_gradients(params: Sequence[Parameter]) -> NDArray:
    """The number of gradients that have a NaN or an infinity, shape (1,)."""
    gradients = [g for p in params if p.grad_req != "null" for g in legacy(p.list_grad())]
    number = mx.nd.zeros(1)
    for gradient in gradients:
        finite = mx.nd.multi_all_finite(gradient, num_arrays=1).as_in_context(number.context)
        number += 1 - finite
    return number
