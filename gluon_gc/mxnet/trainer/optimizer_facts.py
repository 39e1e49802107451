"""The facts of an optimizer that workers compare, and its learning rate in the next step."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.lr_scheduler import LRScheduler
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


def of_optimizer(optimizer: Optimizer, indices: Sequence[int] = ()) -> Facts:
    """The class of an optimizer, its hyper-parameters, and those of its scheduler."""
    rate, scheduler = ask_ahead(optimizer, indices)
    values = {
        "class": type(optimizer).__name__,
        "lr_scheduler": None if scheduler is None else type(scheduler).__name__,
        "learning_rate": _plain(rate),
        **_kept(optimizer),
    }
    scheduler_facts = [("the lr_scheduler", _kept(scheduler))] if scheduler is not None else []
    return [("the optimizer", values), *scheduler_facts]


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


def ask_ahead(optimizer: Optimizer, indices: Sequence[int]) -> tuple[float, Any]:
    """The learning rate of the next update, and a copy of the scheduler in the state after it.

    Schedulers may count their calls, or change when they see a higher number of updates.
    """
    if optimizer.lr_scheduler is None:
        return optimizer.learning_rate, None
    number = optimizer.num_update
    if not isinstance(optimizer, mx.optimizer.LBSGD):  # which asks before it counts the update
        counts, first = optimizer._index_update_count, optimizer.begin_num_update
        number = max([number, *(counts.get(i, first) + 1 for i in indices)])
    scheduler = _copied(optimizer.lr_scheduler, whole=True)
    return scheduler(number), scheduler


def _copied(value: Any, whole: bool = False) -> Any:
    """A copy of schedulers and containers in a value; other objects, such as networks, stay."""
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if whole or isinstance(value, LRScheduler):
        clone = copy.copy(value)
        if hasattr(clone, "__dict__") and clone is not value:  # a function has no copy
            vars(clone).update({name: _copied(item) for name, item in vars(value).items()})
        return clone
    return value
