"""Equal weights: all workers start with them, and some steps check that they still have them."""

from __future__ import annotations

from types import MethodType
from typing import Any, Callable, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ...algorithms.requirements import digest
from ...exchange import weight_samples
from ...exchange.weight_samples import ELEMENTS, EVERY, PARAMETERS, Sample
from ..exchange.exchange import Exchange
from .parameters import first_copy, is_statistic

Broadcast = Callable[[Sequence[Parameter]], None]


def broadcast_initial(
    exchange: Exchange, params: Sequence[Parameter], broadcast: Broadcast
) -> None:
    """Broadcast initialized parameters now, and deferred ones when they are initialized."""
    values = {True: "is there", False: "comes with the first batch, which sets the shape"}
    facts = [(f"parameter {p.name}", {"a value that": values[_is_ready(p)]}) for p in params]
    exchange.agree("DistributedTrainer", facts)
    broadcast([param for param in params if _is_ready(param)])
    for param in params:
        if param._deferred_init:
            _broadcast_when_initialized(param, broadcast)


def _is_ready(param: Parameter) -> bool:
    return param._deferred_init == () and param._data is not None


def _broadcast_when_initialized(param: Parameter, broadcast: Broadcast) -> None:
    """Broadcast a deferred parameter once. A deep copy of the parameter is not broadcast."""
    initialize = param._init_impl.__func__

    def initialize_and_broadcast(self: Parameter, *args: Any) -> None:
        self.__dict__.pop("_init_impl", None)  # restores the class's method
        initialize(self, *args)
        if self is param:
            broadcast([param])

    param._init_impl = MethodType(initialize_and_broadcast, param)


def broadcast_changed(
    exchange: Exchange, params: Sequence[Parameter], broadcast: Broadcast
) -> None:
    """Broadcast parameters that differ in the first step. Running statistics always do."""
    if exchange.num_workers == 1:
        return
    exchange.agree("step")  # so that only the values may differ below
    params = [p for p in params if p._data is not None and not is_statistic(p)]
    values = [(param.name, {"digest": digest(first_copy(param).asnumpy())}) for param in params]
    if not exchange.agrees("step", values):
        broadcast(params)


class WeightCheck:
    """Checks in some steps that all workers have equal weights; all make the same calls.

    A check sums an array in which each worker has filled its own row. The next check, `EVERY`
    updates later, reads the sum: until then it has arrived, so training need not wait.
    """

    def __init__(self, exchange: Exchange, name: str) -> None:
        self._exchange, self._name = exchange, name
        self._updates = 0
        self._pending: tuple[NDArray, Sequence[Sample], Sequence[str], str] | None = None

    def before_update(self, params: Sequence[Parameter], step: int) -> None:
        """Count an update with averages. If a check is due, queue it, and read the last one.

        At other times weights may differ: sharpness-aware minimization changes them for a while.
        """
        self._updates += 1
        if self._exchange.num_workers == 1 or self._updates % EVERY != 1:
            return
        if self._pending is not None:
            rows, *about = self._pending
            self._pending = None  # a script may broadcast the weights, and go on
            problem = weight_samples.problem(rows.asnumpy(), *about)
            if problem:
                raise RuntimeError(problem)
        weights = [(param.name, first_copy(param)) for param in params]
        weights = [(name, array) for name, array in weights if np.dtype(array.dtype).kind == "f"]
        names = [name for name, _ in weights]
        chosen = weight_samples.samples(
            self._updates // EVERY, [array.size for _, array in weights]
        )
        rows = mx.nd.zeros((self._exchange.num_workers, PARAMETERS * ELEMENTS))
        if chosen:
            parts = [
                _elements(weights[parameter][1], begin, end) for parameter, begin, end in chosen
            ]
            own = mx.nd.concat(*(part.as_in_context(mx.cpu()) for part in parts), dim=0)
            rows[self._exchange.rank, : own.size] = own
        self._exchange.total(self._name, rows, "step")
        self._pending = rows, chosen, names, f"the update of step {step}"


def _elements(array: NDArray, begin: int, end: int) -> NDArray:
    """A range of elements, as float32; MXNet refuses slices of MKL-DNN's own layout."""
    indices = np.stack(np.unravel_index(np.arange(begin, end), array.shape))
    on_device = mx.nd.array(indices, array.context, dtype="int64")
    return mx.nd.gather_nd(array, on_device).astype("float32")
