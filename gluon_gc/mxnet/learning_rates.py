"""The learning rates of MXNet's optimizers in steps to come."""

from __future__ import annotations

from typing import Dict, Sequence

from mxnet.optimizer import Optimizer

from .. import learning_rates


class LearningRates(learning_rates.LearningRates):
    """For each parameter, by number, the learning rate at the last exchange of its gradient.

    It is the optimizer's own, without the parameter's lr_mult.
    """

    def ratios(self, optimizer: Optimizer, indices: Sequence[int]) -> Dict[int, float]:
        """The last learning rate of each parameter over that of the update to come, where not 1.

        Parameters
        ----------
        optimizer : Optimizer
        indices : sequence of int
            The parameters that the update will change.
        """
        return self.advance(dict.fromkeys(indices, next_rate(optimizer, indices)))


def next_rate(optimizer: Optimizer, indices: Sequence[int]) -> float:
    """The learning rate of the update to come, which will change these parameters."""
    if optimizer.lr_scheduler is None:
        return optimizer.learning_rate
    counts, first = optimizer._index_update_count, optimizer.begin_num_update
    numbers = [counts.get(i, first) + 1 for i in indices]
    return optimizer.lr_scheduler(max([optimizer.num_update, *numbers]))
