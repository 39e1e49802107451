"""Fresh gradients, which backward has written since the last exchange, and stale ones.

MXNet marks a parameter's array when backward writes its gradient. gluon.Trainer removes the mark
when it updates the parameter. Here the exchange removes the mark, and the update of its averages
sets it again before gluon.Trainer looks for it. A stale gradient holds an earlier average, or
uninitialized memory, so it counts as zeros.
"""

from __future__ import annotations

from typing import Iterable, Iterator, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ...exchange.agreement import Facts
from ..exchange.exchange import Exchange
from ..exchange.gradient import legacy


def _stale(
    params: Iterable[Parameter], averaged: Sequence[NDArray] = ()
) -> Iterator[tuple[Parameter, mx.Context]]:
    """Parameters with a stale gradient, and its contexts. Arrays in `averaged` count as fresh."""
    fresh = set(map(id, averaged))
    for param in params:
        if param.grad_req != "null":
            for data in param.list_data():
                if not data._fresh_grad and id(data) not in fresh:
                    yield param, data.context


def first_stale(params: Iterable[Parameter]) -> str:
    """The name of the first parameter with a stale gradient; "": there is none."""
    return next((param.name for param, _ in _stale(params)), "")


def require_fresh(params: Iterable[Parameter], averaged: Sequence[NDArray] = ()) -> None:
    """Raise UserWarning, as gluon.Trainer does, if a gradient is stale; see `_stale`."""
    for param, context in _stale(params, averaged):
        raise UserWarning(
            f"Gradient of Parameter `{param.name}` on context {context} has not been updated by "
            "backward since last `step` or `allreduce_grads`. If this is intended, call step with "
            "ignore_stale_grad=True on all workers"
        )


def fresh_anywhere(
    exchange: Exchange, name: str, params: Sequence[Parameter], about: Facts
) -> list[bool]:
    """For each parameter, whether its gradient is fresh on any context of any worker.

    If so, its stale copies become zeros and fresh, so each worker and context updates it. All
    workers wait for each other.
    """
    flags = [is_fresh(param) for param in params]
    if exchange.num_workers > 1:
        array = mx.nd.array(np.array(flags, np.float32))
        flags = (exchange.total(name, array, "step", about).asnumpy() > 0).tolist()
    for param, fresh in zip(params, flags):
        if fresh:
            renew(param)
    return flags


def is_fresh(param: Parameter) -> bool:
    """Whether a gradient is fresh on any context of this worker."""
    return param.grad_req != "null" and any(data._fresh_grad for data in param.list_data())


def renew(param: Parameter) -> None:
    """Set the stale copies of a gradient to zero and mark them fresh."""
    for data, gradient in zip(param.list_data(), legacy(param.list_grad())):
        if not data._fresh_grad:
            mx.nd.zeros_like(gradient, out=gradient)
            data._fresh_grad = True


def use_up(params: Iterable[Parameter]) -> list[NDArray]:
    """Mark all gradients stale. Return the arrays of the parameters that were marked fresh."""
    arrays = [data for p in params if p.grad_req != "null" for data in p.list_data()]
    fresh = [data for data in arrays if data._fresh_grad]
    for data in fresh:
        data._fresh_grad = False
    return fresh


def restore(fresh: Iterable[NDArray]) -> None:
    for data in fresh:
        data._fresh_grad = True
