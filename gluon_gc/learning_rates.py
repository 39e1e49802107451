"""Learning rates of the steps so far, for error feedback that follows them."""

from __future__ import annotations

from typing import Dict, Hashable, Mapping


class LearningRates:
    """For each parameter the learning rate at the last exchange of its gradient.

    Attributes
    ----------
    last : dict
        By parameter, under any key.
    """

    def __init__(self) -> None:
        self.last: Dict[Hashable, float] = {}
        self._before: Dict[Hashable, float] = {}

    def advance(self, rates: Mapping[Hashable, float]) -> Dict[Hashable, float]:
        """Begin a step, and return each parameter's last learning rate over the one of this step.

        Parameters
        ----------
        rates : mapping
            The learning rates of this step. A rate of 0 is left out: the next one follows the last
            rate that was not 0.

        Returns
        -------
        dict
            The ratios that are not 1.
        """
        nonzero = {key: rate for key, rate in rates.items() if rate}
        before = {key: self.last[key] for key in nonzero.keys() & self.last.keys()}
        self._before, self.last = self.last, {**self.last, **nonzero}
        return {key: old / nonzero[key] for key, old in before.items() if old != nonzero[key]}

    def take_back(self) -> None:
        """Undo the last `advance`."""
        self.last = self._before
