"""What workers must have in common for their weights to stay equal: facts that they compare."""

from __future__ import annotations

import inspect
from typing import Any, Dict, Sequence, Set

import numpy as np
from mxnet.gluon import Parameter
from mxnet.optimizer import Optimizer

from ..agreement import Facts
from .learning_rates import next_rate

_OTHERS = {"learning_rate", "lr_scheduler", "rescale_grad", "param_idx2name", "param_dict", "sym"}
"""Arguments of optimizers that are compared in another way, or need not be the same."""
_ATTRIBUTES = {"eps": "float_stable_eps", "pwr": "power"}
"""Names under which MXNet's classes keep some arguments, where these are others."""
_PLAIN = (bool, int, float, str, type(None))


def of_optimizer(optimizer: Optimizer, indices: Sequence[int] = ()) -> Facts:
    """The class of an optimizer, its hyper-parameters, and those of its scheduler.

    Parameters
    ----------
    optimizer : Optimizer
    indices : sequence of int
        The parameters that the update to come will change, whose learning rate is compared.
    """
    scheduler = optimizer.lr_scheduler
    values = {
        "class": type(optimizer).__name__,
        "lr_scheduler": None if scheduler is None else type(scheduler).__name__,
        "learning_rate": _plain(next_rate(optimizer, indices)),
        **_kept(optimizer),
    }
    of_scheduler = [("the lr_scheduler", _kept(scheduler))] if scheduler is not None else []
    return [("the optimizer", values), *of_scheduler]


def of_parameters(optimizer: Optimizer, params: Dict[int, Parameter]) -> Facts:
    """The shape of each parameter, by its number, and what multiplies its rate and weight decay."""
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


def _multiplier(optimizer: Optimizer, index: int, which: str) -> Any:
    """As the optimizer has it: of the Parameter, or of its own dict."""
    if index in optimizer.param_dict:
        return getattr(optimizer.param_dict[index], which)
    return getattr(optimizer, which).get(index, 1.0)


def _kept(thing: Any) -> Dict[str, Any]:
    """The arguments of the constructor that an object keeps, if they are plain values."""
    names: Set[str] = set()
    for kind in type(thing).__mro__[:-1]:
        if inspect.isfunction(vars(kind).get("__init__")):
            names.update(inspect.signature(kind.__init__).parameters)
    attributes = {name: _ATTRIBUTES.get(name, name) for name in sorted(names - _OTHERS)}
    kept = {name: _plain(getattr(thing, attribute, None)) for name, attribute in attributes.items()}
    return {name: value for name, value in kept.items() if _is_plain(value)}


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, and tuples as lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return value is not None and all(isinstance(item, _PLAIN) for item in items)
