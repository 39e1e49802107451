"""onebit_adam: Adam, with compressed momentum after the variance is frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

import numpy as np

from ..log import logger
from . import adam
from .adam import total_steps_option, warm_up_length, warm_up_steps
from .base import Algorithm, Array, Arrays, Round, Rounds, Shapes, State, Step, register

_FALLING = 0.5
"""The warm-up is too short if recent squared gradients are smaller than this share of v."""


@register
@dataclass(frozen=True)
class OneBitAdam(Algorithm):
    """Adam that sends compressed momentum instead of gradients after a warm-up.

    The wrapped optimizer is Adam or AdamW. In the first `freeze_step` steps, the workers average
    their gradients uncompressed, and the optimizer updates the parameters with the averages. All
    workers then have the same moments m and v.

    Afterwards v and its bias correction stay as they are. In each step, where worker i has the
    gradient g_i:

        m_i = beta1 m + (1 - beta1) g_i    (compressed, with error feedback)
        m = mean of the m_i
        x = x - lr (m' / (sqrt(v') + epsilon) + weight_decay x)

    Here m' and v' have the optimizer's bias corrections. Coupled weight decay is part of g_i
    instead. Elements with v = 0, which never had a gradient, stay as they are. If a checkpoint is
    loaded with a larger `freeze_step`, v is updated again. Its bias correction counts its updates.

    References
    ----------
    Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
    Speed", 2021.
    """

    name = "onebit_adam"
    description = "Adam, which sends compressed momentum after its variance is frozen"
    shared = ("frozen_steps",)
    own = ("variance",)
    numbers = ("frozen_steps",)
    averages_gradients = True
    equal_parameters = True
    allows_freezing = True
    needs_adam = True
    uncompressed = ("gradient",)

    freeze_step: float = warm_up_length("number of steps with averaged gradients").field()
    total_steps: int | None = total_steps_option("freeze_step").field(None)

    def __post_init__(self) -> None:
        warm_up_steps(self.name, "freeze_step", self.freeze_step, self.total_steps)

    @property
    def frozen_after(self) -> int:
        return warm_up_steps(self.name, "freeze_step", self.freeze_step, self.total_steps)

    def rounds(self, shapes: Shapes) -> Mapping[str, Shapes]:
        return {"gradient": shapes, "momentum": shapes}

    def begin(self, parameters: Arrays) -> dict[str, dict[str, Array]]:
        return {
            "variance": {name: 0.0 * x.sum() for name, x in parameters.items()},
            "frozen_steps": adam.zeros(parameters),
        }

    def added(self, state: State, steps: int, saved: Mapping[str, Any]) -> dict[str, Any]:
        if "frozen_steps" in state:
            return {}
        last = adam.with_options(self, saved).frozen_after
        return adam.frozen_steps(state, "variance", max(0, steps - last))

    def step(self, at: Step, state: Mapping[str, dict[str, Array]]) -> Rounds:
        frozen = state["frozen_steps"]
        if at.number <= self.frozen_after:
            mean = yield Round("gradient", at.gradients)
            for name, gradient in at.gradients.items():
                gradient[:] = mean[name]
            if any(number.item() for number in frozen.values()):
                adam.step(at, frozen)  # the optimizer's own update would count all steps
            else:
                at.update()
            self._watch(at, state["variance"], frozen)
            return
        mean = yield Round("momentum", {name: _own_momentum(at, name) for name in at.gradients})
        adam.count(at, frozen)
        for name in at.gradients:
            x, (m, v) = at.parameters[name], at.adam.moments(name)
            trained = v > 0
            m[:] = trained * mean[name]
            update = at.adam.update(name, frozen[name].item())
            change = update.rate * (m / update.denominator)
            if update.decay:
                change = change + update.decay * (trained * x)
            x[:] = x - change

    def _watch(self, at: Step, sums: dict[str, Array], frozen: Mapping[str, np.ndarray]) -> None:
        """Warn at the end of the warm-up if the squared gradients are still falling fast.

        Between two steps, v has changed by the squared gradients in between. So the sums of v at
        the two steps give their mean. `sums` has the sums of v at the earlier step.
        """
        last = self.frozen_after
        tenth = last // 10
        if tenth and at.number == last - tenth:
            sums.update((name, at.adam.variance(name)) for name in at.gradients)
        if not tenth or at.number != last:
            return
        recent = whole_warm_up = 0.0
        for name in at.gradients:
            total = at.adam.as_float(at.adam.variance(name))
            _, beta2 = at.adam.betas(name)
            kept = beta2**tenth
            recent += (total - kept * at.adam.as_float(sums[name])) / (1 - kept)
            whole_warm_up += total / (1 - beta2 ** (at.number - frozen[name].item()))
        if recent < _FALLING * whole_warm_up:
            logger.warning(
                "algorithm %s freezes Adam's variance in step %d while gradients still fall fast: "
                "the squared gradients of the last %d steps are %.0f %% of the variance. Use a "
                "larger freeze_step",
                self.name,
                at.number,
                tenth,
                100 * recent / whole_warm_up,
            )


def _own_momentum(at: Step, name: str) -> Array:
    """This worker's momentum of a parameter, which is 0 where v is 0."""
    m, v = at.adam.moments(name)
    beta1, _ = at.adam.betas(name)
    return (v > 0) * (beta1 * m + (1 - beta1) * at.adam.gradient(name))
