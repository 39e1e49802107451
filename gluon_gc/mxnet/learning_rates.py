"""The learning rates of MXNet's optimizers in the next step."""

from __future__ import annotations

from typing import Sequence

from mxnet.optimizer import Optimizer


def next_rate(optimizer: Optimizer, indices: Sequence[int]) -> float:
    """The learning rate of the next update, which will change these parameters."""
    if optimizer.lr_scheduler is None:
        return optimizer.learning_rate
    counts, first = optimizer._index_update_count, optimizer.begin_num_update
    numbers = [counts.get(i, first) + 1 for i in indices]
    return optimizer.lr_scheduler(max([optimizer.num_update, *numbers]))
