"""Runs an algorithm, step by step, for a front end that owns arrays and the exchange."""

from __future__ import annotations

from typing import Callable, Dict, Protocol

from .base import Algorithm, Array, Arrays, Round, Shapes, Step


class FrontEnd(Protocol):
    """What a driver needs of a front end."""

    def parameters(self) -> Arrays:
        """This worker's parameters by name, in an order that all workers share."""

    def gradients(self) -> Arrays:
        """This worker's own gradients, of those that have one."""

    def declare(self, kind: str, shapes: Shapes) -> None:
        """Get ready to average vectors of these shapes; all workers call this."""

    def average(self, request: Round) -> Arrays:
        """The averages of a round's vectors, which may be overwritten; all workers call this."""


class Driver:
    """One algorithm for one trainer.

    Parameters
    ----------
    algorithm : Algorithm
    front_end : FrontEnd

    Attributes
    ----------
    steps : int
        How many were made.
    state : dict
        The algorithm's, by kind and parameter; empty before the first step.
    """

    def __init__(self, algorithm: Algorithm, front_end: FrontEnd) -> None:
        self._algorithm, self._front_end = algorithm, front_end
        self.steps = 0
        self.state: Dict[str, Dict[str, Array]] = {}
        self._declared = self._begun = False

    def declare(self) -> None:
        """Get ready for all rounds, unless this was done; all workers call this."""
        if not self._declared:
            self._declared = True
            for kind, shapes in self._algorithm.rounds(self._shapes()).items():
                self._front_end.declare(kind, shapes)

    def begin(self) -> None:
        """Get ready for the first step, unless this was done; all workers call this."""
        self.declare()
        if not self._begun:
            self._begun = True
            self.state = self._algorithm.begin(self._front_end.parameters())

    def go_on(self, steps: int, state: Dict[str, Dict[str, Array]]) -> None:
        """Go on from a checkpoint; all workers call this.

        Parameters
        ----------
        steps : int
            How many were made. After 0 the state comes from the parameters, in the first step.
        state : dict
            As the attribute is.
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
