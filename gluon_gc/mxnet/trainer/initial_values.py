"""Makes all workers start with the same parameters."""

from __future__ import annotations

from types import MethodType
from typing import Any, Callable, Sequence

from mxnet.gluon import Parameter

from ...algorithms.requirements import digest
from ..byteps.running_statistics import is_statistic
from ..exchange.exchange import Exchange
from .parameters import first_copy

Broadcast = Callable[[Sequence[Parameter]], None]


def broadcast_initial(
    exchange: Exchange, params: Sequence[Parameter], broadcast: Broadcast
) -> None:
    """Broadcast initialized parameters now, and deferred ones when they are initialized.

    Raises
    ------
    RuntimeError
        A parameter is initialized on some workers only.
    """
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
    """Broadcast parameters if scripts have given them other values on some workers.

    All workers call this in their first step. Running statistics already differ then, because the
    first forward has changed them.
    """
    if exchange.num_workers == 1:
        return
    exchange.agree("step")  # so that only the values may differ below
    params = [p for p in params if p._data is not None and not is_statistic(p)]
    values = [(param.name, {"digest": digest(first_copy(param).asnumpy())}) for param in params]
    if not exchange.agrees("step", values):
        broadcast(params)
