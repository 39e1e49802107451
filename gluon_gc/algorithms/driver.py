"""Runs the steps of an algorithm for a front end, which owns the arrays and the exchange."""

from __future__ import annotations

from typing import Callable, Dict, Protocol

from .base import Algorithm, Array, Arrays, Round, Shapes, Step


class FrontEnd(Protocol):
    """The interface of a front end to a driver."""

    def parameters(self) -> Arrays:
        """This worker's parameters by name, in the same order on all workers."""

    def gradients(self) -> Arrays:
        """This worker's own gradients, by parameter. Not every parameter has one."""

    def declare(self, kind: str, shapes: Shapes) -> None:
        """Prepare to average arrays of these shapes. All workers call this."""

    def average(self, request: Round) -> Arrays:
        """Average the arrays of a round, which may be overwritten. All workers call this."""


class Driver:
    """Runs one algorithm for one trainer.

    Parameters
    ----------
    algorithm : Algorithm
    front_end : FrontEnd

    Attributes
    ----------
    steps : int
        The number of steps so far.
    state : dict
        The algorithm's state, by kind and parameter. Empty before the first step.
    """

    def __init__(self, algorithm: Algorithm, front_end: FrontEnd) -> None:
        self._algorithm, self._front_end = algorithm, front_end
        self.steps = 0
        self.state: Dict[str, Dict[str, Array]] = {}
        self._declared = self._begun = False

    def declare(self) -> None:
        """Prepare all rounds, at the first call only. All workers call this."""
        if not self._declared:
            self._declared = True
            for kind, shapes in self._algorithm.rounds(self._shapes()).items():
                self._front_end.declare(kind, shapes)

    def begin(self) -> None:
        """Prepare the first step, at the first call only. All workers call this."""
        self.declare()
        if not self._begun:
            self._begun = True
            self.state = self._algorithm.begin(self._front_end.parameters())

    def go_on(self, steps: int, state: Dict[str, Dict[str, Array]]) -> None:
        """Continue from a checkpoint. All workers call this.

        Parameters
        ----------
        steps : int
            The number of steps before the checkpoint. If 0, the first step makes the state from the
            parameters.
        state : dict
            The attribute `state`.
        """
        self.declare()
        self.steps, self.state, self._begun = steps, state, steps > 0

    def step(self, update: Callable[[], None]) -> None:
        """Make a step.

        Parameters
        ----------
        update : callable
            Applies the optimizer's update with this worker's gradients.
        """
        self.begin()
        self.steps += 1
        front_end = self._front_end
        at = Step(self.steps, front_end.parameters(), front_end.gradients(), update)
        rounds, answer = self._algorithm.step(at, self.state), None
        try:
            while True:
                answer = front_end.average(rounds.send(answer))
        except StopIteration:
            pass

    def _shapes(self) -> Shapes:
        parameters = self._front_end.parameters()
        return {name: tuple(array.shape) for name, array in parameters.items()}
