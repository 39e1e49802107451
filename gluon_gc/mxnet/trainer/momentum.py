"""Momentum that neither the compressor nor the optimizer applies; see `compression.momentum`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray
from mxnet.optimizer import NAG, SGD, Optimizer

from ...compression.momentum import require_linear
from ...exchange.plan import working_dtype
from ..exchange.gradient import legacy


def momentum_of(optimizer: Optimizer) -> tuple[float | None, bool]:
    """An optimizer's momentum, or None without, and whether it is Nesterov momentum."""
    mu = getattr(optimizer, "momentum", None)
    return float(mu) if mu else None, isinstance(optimizer, NAG)


def require_outside(optimizer: Optimizer, mu: float) -> None:
    """Raise ValueError unless momentum mu can be applied outside this optimizer."""
    require_linear(optimizer, (SGD, NAG))
    limit = optimizer.clip_gradient
    if limit and limit > 0:
        raise ValueError(
            f"momentum is applied without clip_gradient, got {limit}: pass max_grad_norm to the "
            "trainer, or leave out 'momentum' (and use another compressor than dgc)"
        )
    if optimizer.momentum != mu:
        raise ValueError(
            f"the optimizer's momentum is {optimizer.momentum} now, but compressors apply {mu}: "
            "make a new trainer, or leave out 'momentum' (and use another compressor than dgc)"
        )


@contextmanager
def switched_off(optimizer: Optimizer) -> Iterator[None]:
    momentum, optimizer.momentum = optimizer.momentum, 0.0
    try:
        yield
    finally:
        optimizer.momentum = momentum


class Momentum:
    """Momentum mu. Its state has the dtype that compressors compute in.

    The keys are (index,) for m, and (index, number of the context) for w.
    """

    def __init__(self, mu: float, nesterov: Callable[[int], bool]) -> None:
        self.mu, self._nesterov = mu, nesterov
        self._state: dict[tuple[int, ...], NDArray] = {}
        self._keeps_earlier = False
        self._earlier: dict[tuple[int, ...], NDArray] = {}  # before the last exchange

    def keep_earlier(self) -> None:
        self._keeps_earlier = True

    def begin(self) -> None:
        self._earlier = {}

    def take_back(self) -> None:
        """Undo all changes since `begin`."""
        self._state.update(self._earlier)
        self._earlier = {}

    def add_to_gradient(self, index: int, gradients: Sequence[NDArray], unit: float = 1.0) -> None:
        """Apply momentum to an uncompressed gradient, with equal copies on all contexts.

        The gradients are in this unit, and m is in units of 1.
        """
        first, *others = legacy(gradients)
        m = self._to_change((index,), first)
        m *= self.mu
        gradient = first.astype(m.dtype, copy=False)
        m += gradient if unit == 1.0 else gradient * unit
        if self._nesterov(index):
            first += (self.mu / unit * m).astype(first.dtype, copy=False)
        else:
            (m if unit == 1.0 else m / unit).astype(first.dtype, copy=False).copyto(first)
        for other in others:
            first.copyto(other)

    def _to_change(self, key: tuple[int, ...], like: NDArray) -> NDArray:
        """The state with this key, on the context of `like`; zeros at first.

        The caller changes it in place: it is a copy if the change may be taken back.
        """
        state = self._state.get(key)
        if state is None:
            dtype = working_dtype(np.dtype(like.dtype).name)
            state = mx.nd.zeros(like.shape, ctx=like.context, dtype=dtype)
        state = state.as_in_context(like.context)
        if self._keeps_earlier:
            self._earlier.setdefault(key, state)
            state = state.copy()
        self._state[key] = state
        return state

    def add_weight_decay(
        self,
        optimizer: Optimizer,
        params: Sequence[Parameter],
        rescale: float,
        unit: float = 1.0,
    ) -> None:
        """Add w / rescale to fresh gradients, because the optimizer multiplies by `rescale`.

        float16 gradients are also in this unit.
        """
        for index, param in enumerate(params):
            if param.grad_req != "null":
                factor = rescale * unit if is_half(param) else rescale
                self._add_weight_decay(index, optimizer._get_wd(index), param, factor)

    def _add_weight_decay(self, index: int, wd: float, param: Parameter, rescale: float) -> None:
        weights, nesterov = param.list_data(), self._nesterov(index)
        fresh = [weight._fresh_grad for weight in weights]
        for context, (x, gradient) in enumerate(zip(legacy(weights), legacy(param.list_grad()))):
            key = (index, context)
            if fresh[context] and (wd or key in self._state):
                w = self._to_change(key, x)
                if nesterov and rescale == 1.0 and _dense_float32(x, gradient):
                    # SGD's update computes both formulas: w is its momentum, x its gradient.
                    rate = -self.mu * wd
                    mx.nd.sgd_mom_update(gradient, x, w, lr=rate, momentum=self.mu, out=gradient)
                    continue
                before = w / rescale
                w += wd * x.astype(w.dtype, copy=False)
                w *= self.mu
                added = w / rescale if nesterov else before
                gradient += added.astype(gradient.dtype, copy=False)

    def clear(self) -> None:
        self._state.clear()
        self._earlier.clear()

    def state(self) -> dict[tuple[int, ...], np.ndarray]:
        """For a checkpoint."""
        return {key: array.asnumpy() for key, array in self._state.items()}

    def load_state(
        self, state: Mapping[tuple[int, ...], np.ndarray], params: Sequence[Parameter]
    ) -> None:
        """Restore a result of `state`. Each context gets the w of the first: they are equal."""
        self.clear()
        for (index, *context), array in state.items():
            if context and context[0] > 0:
                continue
            contexts = range(len(params[index].list_ctx()))
            for key in [(index, i) for i in contexts] if context else [(index,)]:
                self._state[key] = mx.nd.array(array, dtype=array.dtype)


def is_half(array: NDArray | Parameter) -> bool:
    return np.dtype(array.dtype) == np.float16


def _dense_float32(*arrays: NDArray) -> bool:
    return all(array.stype == "default" and array.dtype == np.float32 for array in arrays)
