"""For algorithms that wrap Adam: the optimizer's interface, and the options of a warm-up.

The length of a warm-up is a number of steps, or a share of all steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from ..options import Option, share_or_whole, whole
from .base import Array


class Update(NamedTuple):
    """Adam's update of a parameter x: x = x - decay x - rate (m / denominator)."""

    rate: float  # the learning rate, with the bias correction of the first moment
    denominator: Array  # the root of the second moment with its bias correction, plus epsilon
    decay: float  # the learning rate times the decoupled weight decay; 0 for coupled weight decay


class Adam(Protocol):
    """The wrapped Adam optimizer in one step, by the names of the parameters."""

    steps: int  # that the optimizer has counted for the first parameter

    def moments(self, name: str) -> tuple[Array, Array]:
        """The first and second moment, which the algorithm may write to."""

    def variance(self, name: str) -> Array:
        """The sum of the second moment over all elements, also over the shards of other workers.

        All workers that have shards of the parameter call this together.
        """

    def betas(self, name: str) -> tuple[float, float]:
        """The decay rates of the moments."""

    def gradient(self, name: str) -> Array:
        """This worker's gradient, with the optimizer's coupled weight decay and clipping."""

    def as_float(self, number: Array) -> float:
        """The value of an array with one element, such as a sum."""

    def count(self) -> None:
        """Count a step that the algorithm makes in place of the optimizer's update.

        It counts for frozen parameters, too, so that `update` finds the steps of their variance.
        """

    def update(self, name: str, frozen: int) -> Update:
        """The current step's update of a parameter, after `count`.

        The second moment and its bias correction did not change in the last `frozen` steps,
        including this one. A parameter that a loaded checkpoint lacks has fewer steps; then the
        bias correction is that of one step.
        """


def warm_up_length(meaning: str) -> Option:
    return share_or_whole(f"{meaning}, or a share of total_steps")


def total_steps_option(key: str) -> Option:
    """The option for the number of all steps. `key` is the option for the length."""
    number = whole(1, f"all steps; needed if {key} is a share")
    return replace(
        number,
        types=(*number.types, type(None)),
        rule=lambda value: value is None or number.rule(value),
    )


def warm_up_steps(name: str, key: str, given: float, total: int | None) -> int:
    """The steps of a warm-up of `given` steps, or of this share of `total` steps."""
    if given >= 1:
        return int(given)
    if total is None:
        raise KeyError(
            f"algorithm['total_steps'] is missing; {name} needs it because '{key}' is {given!r}, a "
            "share of all steps"
        )
    return max(1, round(given * total))
