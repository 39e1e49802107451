"""Runs "auto" for the algorithm local_steps: chooses how often it exchanges, and the compressor.

The model: in a round, the vectors of all parameters are exchanged one after the other, while
training waits. The share of a round is its seconds, divided by the seconds of the H steps from one
round to the next.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from .. import env
from ..compression import CompressionParams, candidates
from ..compression.auto import PLAIN
from ..exchange.plan import Tensor
from ..log import logger
from .algorithm import AutomaticAlgorithm, Decision
from .choice import Measured, Topology, cost_of
from .probe import Workers
from .selection import compressors_of, own_candidates

SHARE = 0.1  # of a round, at most, at which the choice aims
LEAST, MOST = 10, 500  # of a chosen H. With 1 or 2 and outer momentum 0.9, SGD does not converge
_USUAL = 30  # the H of DiLoCo, up to which the more accurate compressor counts more than H
_MULTIPLE = 5  # H is a multiple of this, so that noise rarely changes it
_SKIPPED = 1  # the first step compiles kernels and allocates memory
_COUNTED = 5


class Choice(NamedTuple):
    name: str  # of the compressor's candidate (see `compression.candidates`)
    every: int  # H
    seconds: float  # predicted for a round
    share: float  # of a round


def choose(
    round_seconds: Mapping[str, float],
    step_seconds: float,
    every: int | None = None,
    least: int = LEAST,
) -> Choice:
    """Choose a compressor and H, so that the share of a round is at most 10 %.

    For each compressor, H is the smallest multiple of 5 from 10 to 500 that reaches this share, or
    500. The most accurate compressor that reaches it with an H of at most 30 is chosen. If there is
    none, the compressor with the smallest H is chosen. If H is given (`every`), the most accurate
    compressor that reaches the share is chosen, or else the fastest one.

    `round_seconds` are by candidate, the most accurate first. `step_seconds` is a step without a
    round. `least` limits H from below, if it is more than 10.
    """
    choices = [
        Choice(name, steps, took, took / (steps * step_seconds))
        for name, took in round_seconds.items()
        for steps in [every or _smallest_every(took, step_seconds, least)]
    ]
    for choice in choices:
        if choice.share <= SHARE and (every or choice.every <= _USUAL):
            return choice
    return min(choices, key=lambda choice: (choice.every, max(SHARE, choice.share)))


def _smallest_every(round_seconds: float, step_seconds: float, least: int) -> int:
    first = _MULTIPLE * math.ceil(max(LEAST, least) / _MULTIPLE)
    for every in range(first, MOST, _MULTIPLE):
        if round_seconds / (every * step_seconds) <= SHARE:
            return every
    return max(first, MOST)


def seconds_of_round(
    tensors: Sequence[Tensor],
    measured: Measured,
    topology: Topology,
    partition_bytes: int,
    min_compress_bytes: int,
) -> dict[str, float]:
    """The predicted seconds of a round with each candidate, by name, the most accurate first.

    Tensors with fewer than `min_compress_bytes` bytes are not compressed.
    """
    totals = {}
    for name in names_of([tensor.params for tensor in tensors]):
        totals[name] = 0.0
        for tensor in tensors:
            own = name_for(tensor.params, name)
            params = own_candidates(tensor.params)[own]
            if params.compressor is not None and tensor.num_bytes < min_compress_bytes:
                own, params = PLAIN, CompressionParams()
            cost = cost_of(tensor, own, params, measured, topology, partition_bytes)
            totals[name] += cost.seconds
    return totals


def names_of(several: Sequence[CompressionParams]) -> Sequence[str]:
    """The names of all candidates for these params, the most accurate first.

    The candidates of each accuracy begin with those of the stricter ones.
    """
    automatic = (list(candidates(params)) for params in several if params.accuracy is not None)
    return max(automatic, key=len, default=[PLAIN])


def name_for(params: CompressionParams, name: str) -> str:
    """The name of a parameter's compression, if the candidate `name` is chosen for all parameters.

    A parameter whose accuracy does not allow it gets the smallest payloads that are allowed.
    """
    names = list(own_candidates(params))
    return name if name in names else names[-1]


class StepClock:
    """Measures the seconds from one call of a trainer's `step` to the next.

    `wait` returns when this worker has done all the computation that it has queued.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait, self._calls = wait, 0
        self._times: list[float] = []

    def tick(self) -> bool:
        """Count a call of `step`. Return whether enough steps have been measured."""
        self._calls += 1
        if self._calls > _SKIPPED:
            self._wait()
            self._times.append(time.perf_counter())
        return len(self._times) > _COUNTED

    @property
    def seconds(self) -> float:
        """The median time of the measured steps, because a step may evaluate or save the model."""
        return float(np.median(np.diff(self._times)))


class AutomaticLocalSteps(AutomaticAlgorithm):
    """Chooses the compressor and H.

    Until the choice, there are no rounds, and the time of a step is measured.
    """

    until_chosen = {"every": sys.maxsize, "start": 0}

    def __init__(self, *given: Any, wait: Callable[[], None]) -> None:
        super().__init__(*given)
        timed = _SKIPPED + _COUNTED
        if 0 < self._given.start <= timed:
            raise ValueError(
                f"algorithm['start'] must be 0 or above {timed} with the compressor 'auto', which "
                f"times {timed} steps without averages first, got {self._given.start}"
            )
        self._clock = StepClock(wait)

    @property
    def chooses_option(self) -> bool:
        """Whether "auto" chooses H: the other accuracies keep it, because H changes accuracy."""
        return "aggressive" in self._accuracies and not self._option_given

    def due(self) -> bool:
        return self.undecided and self._clock.tick()

    @property
    def seconds(self) -> float:
        return self._clock.seconds

    def names(self, several: Sequence[CompressionParams]) -> Sequence[str]:
        return names_of(several)

    def own_candidate(self, params: CompressionParams, name: str) -> tuple[str, CompressionParams]:
        own = name_for(params, name)
        return own, own_candidates(params)[own]

    def choose(
        self,
        tensors: Sequence[Tensor],
        shapes: Sequence[Sequence[int]],
        workers: Workers,
        seconds: float,
    ) -> Decision:
        """Choose the compressor and H; `seconds` is the time of a step on the slowest worker."""
        names = self.names([tensor.params for tensor in tensors])
        if workers.topology is None or len(names) == 1:
            return Decision(PLAIN, self._given.every)
        measured = workers.measured(compressors_of(tensors))
        settings = (env.get(f"BYTEPS_{limit}_BYTES") for limit in ("PARTITION", "MIN_COMPRESS"))
        of_round = seconds_of_round(tensors, measured, workers.topology, *settings)
        every = None if self.chooses_option else self._given.every
        least = max(self._given.fragments, self._given.overlap + 1)
        choice = choose(of_round, seconds, every, least)
        if workers.logs:
            logger.warning("%s", self._explained(tensors, measured, seconds, choice))
        return Decision(choice.name, choice.every)

    def _explained(
        self, tensors: Sequence[Tensor], measured: Measured, step_seconds: float, choice: Choice
    ) -> str:
        size = sum(tensor.size for tensor in tensors)
        line = (
            f"auto, {self.accuracy}: the link carries {measured.link.bits / 1e6:,.0f} Mbit/s, and "
            f"a local step takes {step_seconds:.3g} s: {choice.name} for {size:,} elements every "
            f"{choice.every} steps; a round should take {choice.seconds:.3g} s, "
            f"{100 * choice.share:.3g} % of the time of these steps"
        )
        if choice.share <= SHARE:
            return line
        enough = math.ceil(choice.every * choice.share / SHARE)
        limit = f", but auto chooses at most {MOST}" if self.chooses_option else ""
        return f"{line}; {100 * SHARE:.0f} % would need 'every' {enough}{limit}"
