"""For algorithms that wrap Adam: the optimizer's interface, its step, and a warm-up's options.

The length of a warm-up is a number of steps, or a share of all steps.

The kind of state "frozen_steps" has, for each parameter, the number of steps that the optimizer has
counted but in which the second moment stayed. The bias correction needs it. It cannot be computed
from the options, because they may change when a checkpoint is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection, Mapping, NamedTuple, Protocol

import numpy as np

from ..options import Option, share_or_whole, whole
from .base import Algorithm, Array, Arrays, State, Step


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

    def update(self, name: str, frozen: float) -> Update:
        """The current step's update of a parameter, after `count`.

        The second moment and its bias correction did not change in `frozen` of all steps that the
        optimizer has counted. If it never changed, the bias correction is that of one step.
        """


def zeros(parameters: Arrays) -> dict[str, Array]:
    """A kind of state with the number 0 for each parameter."""
    first = {name: x.reshape((-1,))[:1] for name, x in parameters.items()}  # none if empty
    return {name: 0.0 * x.sum().reshape((1,)) for name, x in first.items()}


def count(at: Step, frozen: Mapping[str, np.ndarray], updated: Collection[str] = ()) -> None:
    """Count a step that updates the second moments of these parameters only."""
    at.adam.count()
    for name in at.parameters.keys() - updated:
        frozen[name] += 1


def step(at: Step, frozen: Mapping[str, np.ndarray]) -> None:
    """Make Adam's step with averaged gradients, and count it."""
    own = {name: at.adam.gradient(name) for name in at.gradients}
    count(at, frozen, own.keys())
    for name, g in own.items():
        x, (m, v), (beta1, beta2) = at.parameters[name], at.adam.moments(name), at.adam.betas(name)
        m[:] = beta1 * m + (1 - beta1) * g
        v[:] = beta2 * v + (1 - beta2) * (g * g)
        update = at.adam.update(name, frozen[name].item())
        change = update.rate * (m / update.denominator)
        x[:] = x - (change + update.decay * x if update.decay else change)


def with_options(algorithm: Algorithm, saved: Mapping[str, Any]) -> Any:
    """The algorithm with the options of a checkpoint, as far as it has them."""
    return replace(algorithm, **{key: saved[key] for key in algorithm.keys() if key in saved})


def frozen_steps(state: State, like: str, number: int) -> dict[str, dict[str, Array]]:
    """The kind of state "frozen_steps" with one number, for the parameters of the kind `like`."""
    numbers = state.get(like, {}).items()
    return {"frozen_steps": {name: 0.0 * x.reshape((1,)) + number for name, x in numbers}}


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
