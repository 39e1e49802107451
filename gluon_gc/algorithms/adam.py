"""The interface of a wrapped Adam optimizer to an algorithm."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Tuple

from .base import Array


class Update(NamedTuple):
    """Adam's update of a parameter x: x = x - decay x - rate (m / denominator).

    Parameters
    ----------
    rate : float
        The learning rate, with the bias correction of the first moment.
    denominator : array
        The root of the second moment with its bias correction, plus epsilon.
    decay : float
        The learning rate times the decoupled weight decay; 0 for coupled weight decay.
    """

    rate: float
    denominator: Array
    decay: float


class Adam(Protocol):
    """The wrapped Adam optimizer in one step, by the names of the parameters.

    Attributes
    ----------
    steps : int
        The number of steps that the optimizer has counted for the first parameter.
    """

    steps: int

    def moments(self, name: str) -> Tuple[Array, Array]:
        """The first and second moment, which the algorithm may write to."""

    def betas(self, name: str) -> Tuple[float, float]:
        """The decay rates of the moments."""

    def gradient(self, name: str) -> Array:
        """This worker's gradient as it enters the moments.

        It includes coupled weight decay and the optimizer's own clipping.
        """

    def as_float(self, number: Array) -> float:
        """The value of an array with one element, such as a sum."""

    def count(self) -> None:
        """Count a step that the algorithm makes in place of the optimizer's update.

        It counts for frozen parameters, too, so that `update` finds the steps of their variance.
        """

    def update(self, name: str, frozen: int) -> Update:
        """The current step's update of a parameter, after `count`.

        Parameters
        ----------
        name : str
        frozen : int
            The number of steps, including this one, in which the second moment did not change. Its
            bias correction did not change in these steps either. A parameter that a loaded
            checkpoint lacks has fewer steps; then the bias correction is that of one step.
        """
