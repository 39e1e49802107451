"""Learning rates in steps to come, for error feedback that follows them."""

from __future__ import annotations

from typing import Dict, Sequence

from mxnet.optimizer import Optimizer


class LearningRates:
    """For each parameter, by number, the learning rate when its gradient was last exchanged.

    It is the optimizer's own: a parameter's lr_mult is not in it.
    """

    def __init__(self) -> None:
        self.last: Dict[int, float] = {}

    def ratios(self, optimizer: Optimizer, indices: Sequence[int]) -> Dict[int, float]:
        """The last learning rate of each parameter over that of the update to come, where not 1.

        Parameters
        ----------
        optimizer : Optimizer
        indices : sequence of int
            The parameters that the update will change.
        """
        rate = next_rate(optimizer, indices)
        if not rate:
            return {}
        ratios = {i: self.last[i] / rate for i in indices if self.last.get(i, rate) != rate}
        self.last.update(dict.fromkeys(indices, rate))
        return ratios


def next_rate(optimizer: Optimizer, indices: Sequence[int]) -> float:
    """The learning rate of the update to come, which will change these parameters."""
    if optimizer.lr_scheduler is None:
        return optimizer.learning_rate
    counts, first = optimizer._index_update_count, optimizer.begin_num_update
    numbers = [counts.get(i, first) + 1 for i in indices]
    return optimizer.lr_scheduler(max([optimizer.num_update, *numbers]))
