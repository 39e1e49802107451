"""The parameters of a trainer: in what order their gradients come, and equal on all workers."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Sequence, Union

from mxnet.gluon import Parameter, ParameterDict

Parameters = Union[ParameterDict, Mapping[str, Parameter], Sequence[Parameter]]
Broadcast = Callable[[Sequence[Parameter]], None]


def in_order_of_backward(params: Sequence[Parameter], given: Parameters) -> List[int]:
    """The indices of the parameters, which gluon.Trainer sorts by name, the last layer's first.

    What is exchanged first must be there first: what follows stands in line behind it.
    """
    in_order = list(given.values() if hasattr(given, "values") else given)
    place = {id(param): number for number, param in enumerate(in_order)}
    return sorted(range(len(params)), key=lambda i: -place[id(params[i])])


def broadcast_initial(params: Sequence[Parameter], broadcast: Broadcast) -> None:
    """Broadcast those that have values, and deferred ones once they are initialized."""
    broadcast([param for param in params if param._deferred_init == () and param._data is not None])
    for param in params:
        if param._deferred_init:
            _broadcast_when_initialized(param, broadcast)


def _broadcast_when_initialized(param: Parameter, broadcast: Broadcast) -> None:
    initialize = param._init_impl

    def initialize_and_broadcast(*args: Any, **kwargs: Any) -> None:
        param.__dict__.pop("_init_impl", None)  # the class's method again: this happens once
        initialize(*args, **kwargs)
        broadcast([param])

    param._init_impl = initialize_and_broadcast
