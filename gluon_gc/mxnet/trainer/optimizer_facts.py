"""The facts of an optimizer that workers compare, and its learning rate in the next step."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter, ParameterDict, Trainer
from mxnet.optimizer import Optimizer

from ...exchange.agreement import Facts

_NOT_COMPARED = {
    "learning_rate",
    "lr_scheduler",
    "rescale_grad",
    "param_idx2name",
    "param_dict",
    "sym",
}
"""Optimizer arguments that may differ, or that `of_optimizer` compares in another way."""
_ATTRIBUTES = {"eps": "float_stable_eps", "pwr": "power", "learning_rate": "lr"}
"""Attributes of MXNet's classes whose names differ from those of the arguments."""
_PLAIN = (bool, int, float, str, type(None))
_SHARED = (Block, Parameter, ParameterDict, Trainer, Optimizer)


def of_optimizer(optimizer: Optimizer) -> Facts:
    """The class of an optimizer, its hyper-parameters, and those of its scheduler."""
    scheduler = optimizer.lr_scheduler
    values = {
        "class": type(optimizer).__name__,
        "lr_scheduler": None if scheduler is None else type(scheduler).__name__,
        "learning_rate": _plain(optimizer.lr),  # if there is a scheduler, the initial rate
        **_kept(optimizer),
    }
    if scheduler is None:
        return [("the optimizer", values)]
    arguments = _kept(scheduler)
    if optimizer.num_update != optimizer.begin_num_update:
        arguments.pop("base_lr", None)  # schedulers change it, and a new worker's has not yet
    return [("the optimizer", values), ("the lr_scheduler", arguments)]


def of_parameters(optimizer: Optimizer, params: dict[int, Parameter]) -> Facts:
    """Each parameter's shape, and its multipliers of learning rate and weight decay, by index."""
    return [
        (
            f"parameter {param.name}",
            {
                "shape": list(param.shape),
                "learning rate's multiplier": _plain(_multiplier(optimizer, i, "lr_mult")),
                "weight decay's multiplier": _plain(_multiplier(optimizer, i, "wd_mult")),
            },
        )
        for i, param in params.items()
    ]


def progress_of(optimizer: Optimizer) -> dict[str, float]:
    """The plain numbers that updates change, by attribute, such as num_update."""
    arguments = {_ATTRIBUTES.get(name, name) for name in _argument_names(optimizer)}
    return {
        name: value
        for name, value in sorted(vars(optimizer).items())
        if name not in arguments and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _multiplier(optimizer: Optimizer, index: int, which: str) -> Any:
    """The multiplier from the Parameter, or from the optimizer's own dict."""
    if index in optimizer.param_dict:
        return getattr(optimizer.param_dict[index], which)
    return getattr(optimizer, which).get(index, 1.0)


def _kept(instance: Any) -> dict[str, Any]:
    """The constructor arguments that an object keeps, if they are plain values."""
    names = sorted(_argument_names(instance) - _NOT_COMPARED)
    attributes = {name: _ATTRIBUTES.get(name, name) for name in names}
    arguments = {
        name: _plain(getattr(instance, attribute, None)) for name, attribute in attributes.items()
    }
    return {name: value for name, value in arguments.items() if _is_plain(value)}


def _argument_names(instance: Any) -> set[str]:
    names: set[str] = set()
    for kind in type(instance).__mro__[:-1]:
        if inspect.isfunction(vars(kind).get("__init__")):
            names.update(inspect.signature(kind.__init__).parameters)
    return names


def _plain(value: Any) -> Any:
    """NumPy numbers as Python numbers, and tuples as lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return value is not None and all(isinstance(item, _PLAIN) for item in items)


def next_rate(optimizer: Optimizer, indices: Sequence[int]) -> float:
    """The learning rate of the next update of these parameters.

    Schedulers may count their calls, or change when they see a higher number of updates. So only a
    copy of the scheduler is asked.
    """
    if optimizer.lr_scheduler is None:
        return optimizer.learning_rate
    number = optimizer.num_update
    if not isinstance(optimizer, mx.optimizer.LBSGD):  # which asks before it counts the update
        counts, first = optimizer._index_update_count, optimizer.begin_num_update
        number = max([number, *(counts.get(i, first) + 1 for i in indices)])
    return _copied(optimizer.lr_scheduler)(number)


def _copied(scheduler: Any) -> Any:
    """A deep copy of a scheduler, which shares the network and the optimizer that it may hold."""
    attributes = getattr(scheduler, "__dict__", {}).values()
    shared = {id(value): value for value in attributes if isinstance(value, _SHARED)}
    try:
        return copy.deepcopy(scheduler, shared)
    except Exception as error:
        raise TypeError(
            "compression_params['ef'] 'corrected' asks a copy of the lr_scheduler for the next "
            f"learning rate, but {type(scheduler).__name__} cannot be copied ({error}): keep its "
            "state in numbers, lists or arrays instead, give it a __deepcopy__ method, or use "
            "'vanilla'"
        ) from error
