"""zero_one_adam: 0/1 Adam, which seldom updates the variance and later steps locally."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from ..options import whole
from . import adam
from .adam import total_steps_option, warm_up_length, warm_up_steps
from .base import Algorithm, Array, Arrays, Round, Rounds, Shapes, State, Step, register

_LARGEST_EXPONENT = 40


@register
@dataclass(frozen=True)
class ZeroOneAdam(Algorithm):
    """Adam that seldom updates its variance, and sends compressed sums of local steps.

    The wrapped optimizer is Adam or AdamW. Here r is its learning rate with the bias correction of
    the first moment m, and d = sqrt(v') + epsilon, where v' is the second moment with its bias
    correction. With decoupled weight decay, k = 1 - lr weight_decay. Otherwise k = 1, and g_i has
    the weight decay. Elements with v = 0 stay as they are, except in variance steps.

    Until `var_freeze_step`, some steps are variance steps. The first comes in step 1, and after j
    of them the distance to the next is 2^floor((j - 1) / var_update_scaler). In a variance step,
    the workers average their gradients uncompressed, and m, v and x change as in Adam. The bias
    correction of v counts these steps.

    In all other steps, worker i makes a local step, and adds it to u_i:

        m_i = beta1 m_i + (1 - beta1) g_i
        x_i = k x_i - r m_i / d
        u_i = k u_i + r m_i
        s = k s + r
        K = k K

    Then, or after several local steps, the workers average the u_i:

        u = mean of the u_i    (compressed, with error feedback)
        m_i = u / s
        x_i = K anchor - u / d

    The anchor is the set of parameters that all workers had before the first local step since the
    last average. So it has the script's changes in between; the average undoes later ones.
    Afterwards u_i and s start from 0, and K from 1. Until `var_freeze_step` there is an average in
    each step. The interval then doubles every `local_step_scaler` steps, up to
    `local_step_clipper`. If a checkpoint is loaded with other options, an interval that has begun
    ends with an average, and a variance step within it is a local step.

    If the average of the u_i fails because of a NaN or infinity, x_i restarts from the anchor, and
    m_i, u_i, s and K as after an average of zeros.

    References
    ----------
    Lu et al., "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam", 2022.
    """

    name = "zero_one_adam"
    description = "Adam, which seldom updates its variance and sends compressed sums of local steps"
    shared = ("anchor", "rate", "keep", "frozen_steps")
    own = ("sum",)
    numbers = ("rate", "keep", "frozen_steps")
    averages_gradients = True
    needs_adam = True
    uncompressed = ("gradient",)

    var_freeze_step: float = warm_up_length(
        "number of steps after which the variance stays"
    ).field()
    var_update_scaler: int = whole(
        1, "number of updates of the variance after which their distance doubles"
    ).field(16)
    local_step_scaler: int = whole(
        1, "number of steps after which the interval of averages doubles"
    ).field(1000)
    local_step_clipper: int = whole(1, "largest interval of averages, in steps").field(16)
    total_steps: int | None = total_steps_option("var_freeze_step").field(None)

    def __post_init__(self) -> None:
        warm_up_steps(self.name, "var_freeze_step", self.var_freeze_step, self.total_steps)

    @property
    def frozen_after(self) -> int:
        given, total = self.var_freeze_step, self.total_steps
        return warm_up_steps(self.name, "var_freeze_step", given, total)

    def keeps_changes(self, number: int) -> bool:
        return self._is_average_due(number - 1)

    def rounds(self, shapes: Shapes) -> Mapping[str, Shapes]:
        return {"gradient": shapes, "sum": shapes}

    def begin(self, parameters: Arrays) -> dict[str, dict[str, Array]]:
        return {
            "anchor": {name: 1.0 * x for name, x in parameters.items()},
            "sum": {name: 0.0 * x for name, x in parameters.items()},
            "rate": adam.zeros(parameters),
            "keep": {name: 1.0 + zero for name, zero in adam.zeros(parameters).items()},
            "frozen_steps": adam.zeros(parameters),
        }

    def added(self, state: State, steps: int, saved: Mapping[str, Any]) -> dict[str, Any]:
        if "frozen_steps" in state:
            return {}
        updates, _ = adam.with_options(self, saved)._variance_steps(steps)
        return adam.frozen_steps(state, "rate", steps - updates)

    def step(self, at: Step, state: Mapping[str, dict[str, Array]]) -> Rounds:
        _, is_variance_step = self._variance_steps(at.number)
        # New options do not cut an interval of local steps short: its average comes first.
        if is_variance_step and not any(rate.item() for rate in state["rate"].values()):
            mean = yield Round("gradient", at.gradients)
            at.framework.wait(mean.values())
            for name, gradient in at.gradients.items():
                gradient[:] = mean[name]
            adam.step(at, state["frozen_steps"])
            return
        _local_step(at, state)
        if self._is_average_due(at.number):
            try:
                mean = yield Round("sum", state["sum"])
                at.framework.wait(mean.values())
            except Exception:
                _restart(at, state)
                raise
            _apply(mean, at, state)

    def _variance_steps(self, number: int) -> tuple[int, bool]:
        """The number of variance steps so far, and whether this step is one."""
        count, latest, following, last = 0, 0, 1, self.frozen_after
        while following <= min(number, last):
            count, latest = count + 1, following
            following += 2 ** min((count - 1) // self.var_update_scaler, _LARGEST_EXPONENT)
        return count, latest == number

    def _is_average_due(self, number: int) -> bool:
        local = number - self.frozen_after
        if local <= 0:
            return True
        doublings = min((local - 1) // self.local_step_scaler, _LARGEST_EXPONENT)
        return local % min(2**doublings, self.local_step_clipper) == 0


def _local_step(at: Step, state: Mapping[str, dict[str, Array]]) -> None:
    """Make a step with this worker's gradients, and add it to the sum."""
    own = {name: at.adam.gradient(name) for name in at.parameters}
    sums, rates, keeps, frozen = (state[k] for k in ("sum", "rate", "keep", "frozen_steps"))
    adam.count(at, frozen)
    for name, x in at.parameters.items():
        if not rates[name].item():  # no local step came since the last average
            state["anchor"][name] = 1.0 * x
        (m, v), (beta1, _) = at.adam.moments(name), at.adam.betas(name)
        trained = v > 0
        m[:] = trained * (beta1 * m + (1 - beta1) * own[name])
        rate, denominator, decay = at.adam.update(name, frozen[name].item())
        change = rate * (m / denominator)
        x[:] = x - (change + decay * (trained * x) if decay else change)
        keep = 1 - decay
        sums[name] = keep * sums[name] + rate * m
        rates[name] = keep * rates[name] + rate
        keeps[name] = keep * keeps[name]


def _apply(mean: Arrays, at: Step, state: Mapping[str, dict[str, Array]]) -> None:
    """Change moments and parameters by the average of the sums, and start new sums."""
    for name, x in at.parameters.items():
        m, v = at.adam.moments(name)
        trained, anchor = v > 0, state["anchor"][name]
        rate, keep, frozen = (state[k][name].item() for k in ("rate", "keep", "frozen_steps"))
        average = trained * mean[name]
        m[:] = average / (rate or 1.0)  # a learning rate of 0 gives 0
        decayed = trained * (anchor - keep * anchor)
        x[:] = anchor - decayed - average / at.adam.update(name, frozen).denominator
        state["sum"][name] = 0.0 * average
        state["rate"][name][:] = 0.0
        state["keep"][name][:] = 1.0


def _restart(at: Step, state: Mapping[str, dict[str, Array]]) -> None:
    """Leave out the steps since the last average."""
    for name, x in at.parameters.items():
        m, _ = at.adam.moments(name)
        x[:] = state["anchor"][name]
        m[:] = 0.0
        state["sum"][name][:] = 0.0
        state["rate"][name][:] = 0.0
        state["keep"][name][:] = 1.0
