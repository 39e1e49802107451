"""Runs the steps of an algorithm for a front end, which owns the arrays and the exchange."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Callable, Mapping, Protocol

import numpy as np

from ..log import logger
from .adam import Adam
from .base import Algorithm, Array, Arrays, Framework, Round, Rounds, Shapes, Step


class FrontEnd(Protocol):
    """The interface of a front end to a driver."""

    framework: Framework

    def parameters(self) -> Arrays:
        """This worker's parameters by name, in the same order on all workers."""

    def gradients(self) -> Arrays:
        """This worker's own gradients, by parameter. Not every parameter has one."""

    def declare(self, kind: str, shapes: Shapes, compressed: bool) -> None:
        """Prepare to average arrays of these shapes. All workers call this.

        `compressed`: whether compression_params apply.
        """

    def start(self, request: Round) -> Callable[[], Arrays]:
        """Start to average the arrays of a round. All workers call this.

        The arrays may be changed afterwards. The result waits for the averages and returns them.
        """


def is_declared(request: Round, rounds: Mapping[str, Shapes]) -> bool:
    """Whether a round has the names and shapes that were declared for its kind."""
    shapes = {name: tuple(vector.shape) for name, vector in request.vectors.items()}
    declared = rounds.get(request.kind)
    return declared is not None and shapes == {n: tuple(shape) for n, shape in declared.items()}


def undeclared(request: Round, step: int) -> RuntimeError:
    return RuntimeError(
        f"round '{request.kind}' in step {step} is not one of the algorithm's rounds(): its kind, "
        "names, shapes or dtypes differ"
    )


def undivided(kind: str) -> str:
    """The kind of round KIND whose arrays "KIND.0", "KIND.1", and so on divide among them."""
    return kind.partition(".")[0]


_ARRIVING = "/average/"
"""Between the kind of round and the step in a kind of state: averages that arrive in that step."""


def is_arriving(kind: str) -> bool:
    """Whether a kind of a checkpoint's state has averages that are still to arrive."""
    return _ARRIVING in kind


def _raise(error: Exception) -> Arrays:
    raise error


class Driver:
    """Runs one algorithm for one trainer. Its state is empty before the first step.

    Attributes
    ----------
    has_moved : bool
        Whether `begin` has just changed the parameters, so that gradients are of other ones.
    """

    has_moved = False

    def __init__(self, algorithm: Algorithm, front_end: FrontEnd) -> None:
        self.require_possible(algorithm)
        self.algorithm, self._front_end = algorithm, front_end
        self.steps = 0
        self.state: dict[str, dict[str, Array]] = {}
        self._declared = False
        self._checked_variance = False  # whether `_warn_of_untrained` has looked
        # The delayed rounds: by kind of round and step, functions that wait for the averages.
        self._under_way: dict[tuple[str, int], Callable[[], Arrays]] = {}
        self._clock = 0.0  # the time of the last step, see `Step.seconds`
        self._zero: float | None = None  # when the clock began, later by the seconds of waiting

    @staticmethod
    def require_possible(algorithm: Algorithm) -> None:
        """Raise ValueError if the driver cannot run an algorithm."""
        if not algorithm.in_lockstep:
            raise ValueError(
                f"algorithm['every'] must be a number of steps without a mailbox, got "
                f"{algorithm.every!r}: all workers begin a round in the same step"
            )

    def declare(self) -> None:
        """Prepare all rounds, at the first call only. All workers call this."""
        if not self._declared:
            self._declared = True
            parameters = self._front_end.parameters()
            shapes_of_all = {name: tuple(array.shape) for name, array in parameters.items()}
            for kind, shapes in self.algorithm.rounds(shapes_of_all).items():
                compressed = kind not in self.algorithm.uncompressed
                self._front_end.declare(kind, shapes, compressed)

    def begin(self) -> None:
        """Prepare the first step. All workers call this.

        Until the first step, later calls make the state again, because parameters may have changed.
        """
        self.declare()
        if not self.steps:
            self.state = self._in_steps(self.algorithm.begin(self._front_end.parameters()))

    def require_loadable(self) -> None:
        """Raise RuntimeError if no checkpoint can be loaded."""

    def go_on(
        self, steps: int, state: dict[str, dict[str, Array]], has_changed: bool = False
    ) -> None:
        """Continue from a checkpoint with the result of `saved_state`. All workers call this.

        `has_changed`: whether the algorithm had other options. Averages under way then arrive in
        the next step, before new rounds have the same changes.
        """
        self.declare()
        self.steps, self._checked_variance = steps, False
        kinds = {kind: arrays for kind, arrays in state.items() if not is_arriving(kind)}
        self.state = self._in_steps(kinds)
        self._under_way.clear()
        for kind in state.keys() - self.state.keys():
            round_kind, _, step = kind.partition(_ARRIVING)
            due = steps + 1 if has_changed else int(step)
            self._under_way[round_kind, due] = partial(dict, state[kind])

    def is_shared(self, kind: str) -> bool:
        """Whether a kind of `saved_state` is equal on all workers."""
        return kind in self.algorithm.shared or is_arriving(kind)

    def saved_state(self) -> dict[str, dict[str, Array]]:
        """The state for a checkpoint: `state`, and the averages that are still to arrive.

        This waits for the averages, which are the same on all workers.
        """
        self.finish()
        saved, framework = dict(self.state), self._front_end.framework
        parameters = self._front_end.parameters()
        for kind in saved.keys() & set(self.algorithm.numbers):
            saved[kind] = {
                name: framework.from_numpy(number.copy(), parameters[name])
                for name, number in saved[kind].items()
            }
        for (kind, step), averages in self._under_way.items():
            saved[f"{kind}{_ARRIVING}{step}"] = averages()
        return saved

    def _in_steps(self, state: dict[str, dict[str, Array]]) -> dict[str, dict[str, Array]]:
        """A state of arrays of the framework as `Algorithm.step` gets it."""
        to_numpy = self._front_end.framework.to_numpy
        numbers = {
            kind: {name: np.array(to_numpy(array)) for name, array in state[kind].items()}
            for kind in state.keys() & set(self.algorithm.numbers)
        }
        return {**state, **numbers}

    def finish(self) -> None:
        """Wait for the rounds that are under way. Their results still arrive in their steps."""
        for due, wait in self._under_way.items():
            try:
                self._under_way[due] = partial(dict, wait())
            except Exception as error:  # some frameworks raise an error only once
                self._under_way[due] = partial(_raise, error)

    def use(self, algorithm: Algorithm) -> None:
        """Run the same algorithm with other options from the next step on.

        Declare its rounds again.
        """
        self.algorithm, self._declared = algorithm, False

    def step(self, update: Callable[[], None], adam: Adam | None = None) -> None:
        """Make a step. `update` applies the optimizer's update with this worker's gradients.

        A step that fails does not count if gradients are averaged and the optimizer has not counted
        it.
        """
        self.begin()
        self.steps += 1
        front_end = self._front_end
        own = front_end.parameters(), front_end.gradients()
        if adam is not None:
            self._warn_of_untrained(adam, own[0])
        due = [key for key in self._under_way if key[1] == self.steps]
        arrived = {kind: self._under_way.pop((kind, step)) for kind, step in due}
        now = self.now()
        self._zero = now if self._zero is None else self._zero
        seconds, self._clock = (self._clock, now - self._zero), now - self._zero
        framework, abandon = front_end.framework, self.abandon
        at = Step(self.steps, *own, update, framework, arrived, adam, seconds, abandon)
        counted = None if adam is None else adam.steps
        try:
            self._run(self.algorithm.step(at, self.state))
        except Exception:
            if self.algorithm.averages_gradients and (adam is None or adam.steps == counted):
                self.steps -= 1
            raise

    @property
    def abandon(self) -> Callable[[], None] | None:
        """See `Step.abandon`."""
        return self._under_way.clear

    def now(self) -> float:
        """The time in seconds, from which `Step.seconds` is computed."""
        return time.monotonic()

    def _run(self, rounds: Rounds) -> None:
        answer = None
        with suppress(StopIteration):
            while True:
                request = rounds.send(answer)
                try:
                    answer = self._answer(request)
                except Exception as error:
                    rounds.throw(error)
                    raise

    def _answer(self, request: Round) -> Arrays | Callable[[], Arrays]:
        """Start a round, and return the result of `yield`. After a delay, the averages arrive."""
        wait = self.start(request)
        if not request.delay:
            return wait() if request.waits else wait
        self._under_way[request.kind, self.steps + request.delay] = wait
        return {}

    def start(self, request: Round) -> Callable[[], Arrays]:
        """See `FrontEnd.start`."""
        return self._front_end.start(request)

    def _warn_of_untrained(self, adam: Adam, parameters: Arrays) -> None:
        """Warn once if the variance stays, and is zero in all elements of a parameter.

        Workers without an element of the parameter leave the warning to others.
        """
        last = self.algorithm.frozen_after
        if self._checked_variance or last is None or self.steps <= last:
            return
        self._checked_variance = True
        variances = {name: adam.as_float(adam.variance(name)) for name in parameters}
        zero = [n for n, x in parameters.items() if variances[n] == 0 and 0 not in x.shape]
        if zero:
            logger.warning(
                "algorithm %s does not train %s: Adam's variance is zero there, because no "
                "gradient came before the end of step %d, or because a loaded checkpoint lacks it",
                self.algorithm.name,
                ", ".join(zero),
                last,
            )
