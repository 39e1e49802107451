"""Momentum where the compressor does not apply it.

Where the compressor of any parameter applies momentum to the gradient, the optimizer applies none.
What is left is the momentum of gradients that travel uncompressed, and the part that weight decay
has in the optimizer's momentum.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray
from mxnet.optimizer import NAG, SGD, Optimizer

from ..plan import working_dtype
from .gradient import legacy

LINEAR = (SGD, NAG)
"""MXNet's optimizers with momentum whose updates are linear in the gradient."""


def momentum_of(optimizer: Optimizer) -> Tuple[Optional[float], bool]:
    """An optimizer's momentum, None without, and whether it is Nesterov's."""
    mu = getattr(optimizer, "momentum", None)
    return float(mu) if mu else None, isinstance(optimizer, NAG)


@contextmanager
def switched_off(optimizer: Optimizer) -> Iterator[None]:
    """Within, an optimizer applies no momentum; afterwards it is as its owner made it."""
    momentum, optimizer.momentum = optimizer.momentum, 0.0
    try:
        yield
    finally:
        optimizer.momentum = momentum


class Momentum:
    """The state of momentum mu, in the dtype that compressors compute in.

    Parameters
    ----------
    mu : float
        0 < mu.
    nesterov : callable
        Whether the parameter of a number has Nesterov's momentum, rather than the classic one.
    """

    def __init__(self, mu: float, nesterov: Callable[[int], bool]) -> None:
        self.mu, self._nesterov = mu, nesterov
        self._state: Dict[Tuple[int, ...], NDArray] = {}

    def _of(self, place: Tuple[int, ...], like: NDArray) -> NDArray:
        """The state of that place, on the context of `like`; zeros at first."""
        if place not in self._state:
            dtype = working_dtype(np.dtype(like.dtype).name)
            self._state[place] = mx.nd.zeros(like.shape, ctx=like.context, dtype=dtype)
        self._state[place] = self._state[place].as_in_context(like.context)
        return self._state[place]

    def add_to_gradient(self, index: int, gradients: Sequence[NDArray]) -> None:
        """m = mu m + g, then g = g + mu m or g = m, for the equal gradients of all contexts."""
        first, *others = legacy(gradients)
        m = self._of((index,), first)
        m *= self.mu
        m += first.astype(m.dtype, copy=False)
        if self._nesterov(index):
            first += (self.mu * m).astype(first.dtype, copy=False)
        else:
            m.astype(first.dtype, copy=False).copyto(first)
        for other in others:
            first.copyto(other)

    def add_weight_decay(
        self, optimizer: Optimizer, params: Sequence[Parameter], rescale: float
    ) -> None:
        """w = mu (w + wd x), and g = g + w, where the optimizer will multiply g by `rescale`.

        Classic momentum adds the w of the step before. Weights whose gradient is stale are left
        alone, as the optimizer leaves them.
        """
        for index, param in enumerate(params):
            if param.grad_req != "null":
                self._add_weight_decay(index, optimizer._get_wd(index), param, rescale)

    def _add_weight_decay(self, index: int, wd: float, param: Parameter, rescale: float) -> None:
        weights, nesterov = param.list_data(), self._nesterov(index)
        fresh = [weight._fresh_grad for weight in weights]
        for context, (x, gradient) in enumerate(zip(legacy(weights), legacy(param.list_grad()))):
            place = (index, context)
            if fresh[context] and (wd or place in self._state):
                w = self._of(place, x)
                if nesterov and rescale == 1.0 and _dense_float32(x, gradient):
                    # SGD's operator does it all: w is its momentum, x what it takes for a gradient.
                    rate = -self.mu * wd
                    mx.nd.sgd_mom_update(gradient, x, w, lr=rate, momentum=self.mu, out=gradient)
                    continue
                before = w / rescale
                w += wd * x.astype(w.dtype, copy=False)
                w *= self.mu
                added = w / rescale if nesterov else before
                gradient += added.astype(gradient.dtype, copy=False)

    def clear(self) -> None:
        """Start again from zero."""
        self._state.clear()

    def state(self) -> Dict[Tuple[int, ...], np.ndarray]:
        """For a checkpoint, by (index,), or (index, context) for the part of weight decay."""
        return {place: array.asnumpy() for place, array in self._state.items()}

    def load_state(self, state: Mapping[Tuple[int, ...], np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self._state = {place: mx.nd.array(a, dtype=a.dtype) for place, a in state.items()}


def _dense_float32(*arrays: NDArray) -> bool:
    return all(array.stype == "default" and array.dtype == np.float32 for array in arrays)
