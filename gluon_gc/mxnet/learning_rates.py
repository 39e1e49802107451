"""Learning rates of steps to come, for error feedback that follows them."""

from __future__ import annotations

from typing import Dict, Sequence

from mxnet.optimizer import Optimizer


def ratios(
    last: Dict[int, float], optimizer: Optimizer, indices: Sequence[int]
) -> Dict[int, float]:
    """The last learning rate of each parameter over that of the update to come, where not 1.

    Parameters
    ----------
    last : dict
        By the number of a parameter, the learning rate when its gradient was last exchanged; it is
        brought up to date. It is the optimizer's own: a parameter's lr_mult is not in it.
    optimizer : Optimizer
    indices : sequence of int
        The parameters that the update will change.
    """
    rate = next_rate(optimizer, indices)
    if not rate:
        return {}
    changed = {i: last[i] / rate for i in indices if last.get(i, rate) != rate}
    last.update(dict.fromkeys(indices, rate))
    return changed


def next_rate(optimizer: Optimizer, indices: Sequence[int]) -> float:
    """The learning rate of the update to come, which will change these parameters."""
    if optimizer.lr_scheduler is None:
        return optimizer.learning_rate
    counts, first = optimizer._index_update_count, optimizer.begin_num_update
    numbers = [counts.get(i, first) + 1 for i in indices]
    return optimizer.lr_scheduler(max([optimizer.num_update, *numbers]))
