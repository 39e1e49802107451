"""The base class of "auto" for an algorithm: what was given, and what was chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Hashable, Mapping, NamedTuple, Sequence

from ..algorithms import Algorithm
from ..compression import CompressionParams
from ..exchange.plan import Tensor
from .probe import Workers
from .selection import is_saved_as


class Decision(NamedTuple):
    name: str  # of the candidate that compresses the vectors of rounds
    value: int  # of the algorithm's `chosen_option`


class AutomaticAlgorithm:
    """The algorithm and the compression of a trainer, before and after "auto" has chosen them.

    Subclasses choose for one algorithm. `option_given` is whether the user has given the
    algorithm's `chosen_option`.
    """

    until_chosen: ClassVar[Mapping[str, int]] = {}
    """The algorithm's options until the choice."""

    def __init__(
        self, algorithm: Algorithm, params: Mapping[Hashable, CompressionParams], option_given: bool
    ) -> None:
        self._given, self._requested, self._option_given = algorithm, params, option_given
        self._accuracies = {p.accuracy for p in params.values()} - {None}
        self.take(None)

    @property
    def undecided(self) -> bool:
        return self.decision is None

    @property
    def accuracy(self) -> str:
        """The accuracies that limit the choice, for the log."""
        return "/".join(sorted(self._accuracies))

    def described(self) -> dict[str, Any]:
        """The name and the options of the algorithm, for logs, checks and checkpoints."""
        options = self.algorithm.described()
        if self.undecided:
            options.update({option: getattr(self._given, option) for option in self.until_chosen})
            if self.chooses_option:
                options[self.algorithm.chosen_option] = "auto"
        return {"name": self.algorithm.name, **options}

    def take(self, decision: Sequence[Any] | None) -> None:
        """Use a decision: rank 0's, or a checkpoint's. None: take back the last one."""
        self.decision: Decision | None = None
        self.algorithm = replace(self._given, **self.until_chosen)
        self.params = dict(self._requested)
        if decision is None:
            return
        self.decision = Decision(*decision)
        name, value = self.decision
        self.algorithm = replace(self._given, **{self._given.chosen_option: value})
        own = {key: self.own_candidate(params, name) for key, params in self._requested.items()}
        self.params = {key: candidate for key, (_, candidate) in own.items()}

    def saved_decision(
        self, saved: Mapping[Hashable, Any], algorithm: Mapping[str, Any] | None
    ) -> Decision | None:
        """The decision in a checkpoint; None if it has none, or one is made already.

        `saved` has the identities of the CompressionParams in the checkpoint, by the key of
        `params`, and `algorithm` the name and the options.
        """
        if not self.undecided or not algorithm or algorithm["name"] != self.algorithm.name:
            return None
        requested = {
            key: params
            for key, params in self._requested.items()
            if params.accuracy is not None and saved.get(key) is not None
        }
        if not requested:
            return None
        option = self._given.chosen_option
        value = algorithm[option] if self.chooses_option else getattr(self._given, option)
        for name in self.names(list(requested.values())):
            own = {key: self.own_candidate(params, name)[1] for key, params in requested.items()}
            if all(is_saved_as(candidate, saved[key]) for key, candidate in own.items()):
                return Decision(name, value)
        return None

    # What subclasses choose

    @property
    def chooses_option(self) -> bool:
        """Whether "auto" also chooses the algorithm's `chosen_option`."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """What `choose` needs from the slowest worker, measured on this one."""
        raise NotImplementedError

    def due(self) -> bool:
        """Count a step, at its start. Return whether the workers must choose now."""
        return self.undecided

    def choose(
        self,
        tensors: Sequence[Tensor],
        shapes: Sequence[Sequence[int]],
        workers: Workers,
        seconds: float,
    ) -> Decision:
        """Choose, and log the choice and its reason. All workers call this together.

        `tensors` are the vectors of a round before the choice, with the requested params, and
        `shapes` those of their parameters. `seconds` is the attribute of that name on the slowest
        worker. Nothing is compressed without a network.
        """
        raise NotImplementedError

    def names(self, several: Sequence[CompressionParams]) -> Sequence[str]:
        """The names of the candidates for these params, the most accurate first."""
        raise NotImplementedError

    def own_candidate(self, params: CompressionParams, name: str) -> tuple[str, CompressionParams]:
        """A parameter's own candidate and its params, if candidate `name` is chosen for all."""
        raise NotImplementedError
