"""Learning rates of past steps, for error feedback that corrects residuals by their ratio."""

from __future__ import annotations

from typing import Hashable, Iterable, Mapping


class LearningRates:
    """The learning rate of each parameter, by any key, when its gradient was last exchanged."""

    def __init__(self) -> None:
        self.last: dict[Hashable, float] = {}
        self._before: dict[Hashable, float | None] = {}  # the last `advance` of each key
        self._advanced: list[Hashable] = []  # by the last `advance`

    def advance(self, rates: Mapping[Hashable, float]) -> dict[Hashable, float]:
        """Begin a step. Return the ratio of the previous to the current learning rate.

        Ratios of 1 are left out. The ratio to a rate of 0, which applies nothing, counts as 1. The
        ratio of 0 to another rate is 0: nothing is left of gradients with a rate of 0.
        """
        self._advanced = list(rates)
        self._before.update({key: self.last.get(key) for key in rates})
        self.last = {**self.last, **rates}
        return {
            key: self._before[key] / rate
            for key, rate in rates.items()
            if rate and self._before[key] not in (None, rate)
        }

    def keep(self, keys: Iterable[Hashable]) -> None:
        """Undo the last `advance` for these parameters, whose gradients were not used."""
        self.last = self.without(keys)

    def take_back(self) -> None:
        self.keep(self._advanced)

    def without(self, keys: Iterable[Hashable]) -> dict[Hashable, float]:
        """Return what `last` would be after `keep`."""
        rates = {**self.last, **{key: self._before[key] for key in keys if key in self._before}}
        return {key: rate for key, rate in rates.items() if rate is not None}
