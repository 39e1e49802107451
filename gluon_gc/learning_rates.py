"""Learning rates of past steps, for error feedback that corrects residuals by their ratio."""

from __future__ import annotations

from typing import Dict, Hashable, Iterable, Mapping


class LearningRates:
    """The learning rate of each parameter when its gradient was last exchanged.

    Attributes
    ----------
    last, before : dict
        The learning rates after and before the last `advance`, by any key that identifies a
        parameter.
    """

    def __init__(self) -> None:
        self.last: Dict[Hashable, float] = {}
        self.before: Dict[Hashable, float] = {}

    def advance(self, rates: Mapping[Hashable, float]) -> Dict[Hashable, float]:
        """Begin a step. Return the ratio of the previous to the current learning rate.

        Parameters
        ----------
        rates : mapping
            The learning rates of this step. A rate of 0 is ignored: the next ratio is computed from
            the last rate that was not 0.

        Returns
        -------
        dict
            The ratio of each parameter. Ratios of 1 are left out.
        """
        nonzero = {key: rate for key, rate in rates.items() if rate}
        before = {key: self.last[key] for key in nonzero.keys() & self.last.keys()}
        self.before, self.last = self.last, {**self.last, **nonzero}
        return {key: old / nonzero[key] for key, old in before.items() if old != nonzero[key]}

    def keep(self, keys: Iterable[Hashable]) -> None:
        """Undo the last `advance` for these parameters, because no worker has their gradients."""
        for key in keys:
            if key in self.before:
                self.last[key] = self.before[key]
            else:
                self.last.pop(key, None)

    def take_back(self) -> None:
        """Undo the last `advance`."""
        self.last = self.before
