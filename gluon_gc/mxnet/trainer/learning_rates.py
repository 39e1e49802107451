"""The learning rates of MXNet's optimizers in the next step."""

from __future__ import annotations

import copy
from typing import Any, Sequence, Tuple

import mxnet as mx
from mxnet.lr_scheduler import LRScheduler
from mxnet.optimizer import Optimizer


def next_rate(optimizer: Optimizer, indices: Sequence[int]) -> float:
    """The learning rate of the next update, which will change these parameters."""
    return ask_ahead(optimizer, indices)[0]


def ask_ahead(optimizer: Optimizer, indices: Sequence[int]) -> Tuple[float, Any]:
    """The learning rate of the next update, and the scheduler in the state after it, if any.

    Schedulers may count their calls, or change when they see a higher number of updates. So only a
    copy of the scheduler is asked.
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
