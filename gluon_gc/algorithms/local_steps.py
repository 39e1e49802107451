"""local_steps: workers train locally, and average the changes of parameters every few steps."""

from __future__ import annotations

import math
import numbers
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Mapping

from ..exchange import plan
from ..options import Option, first_match, is_whole, real, require_matches, switch, whole
from .base import Algorithm, Array, Arrays, Round, Rounds, Shapes, State, Step, register

_OUTER = ("outer_lr", "outer_momentum", "nesterov")
"""The options that `overrides` may replace for some parameters."""


def _seconds(every: Any) -> float | None:
    """The number in a text such as "60 s"; None if it is no time above 0."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) *s", every.strip()) if isinstance(every, str) else None
    return (float(found[1]) or None) if found else None


_EVERY = Option(
    (numbers.Integral, str),
    lambda every: every > 0 if is_whole(every) else _seconds(every) is not None,
    "a whole number > 0, or a time such as '60 s'",
    "H: number of steps between averages; with a mailbox also the seconds, such as '60 s'",
)


@register
@dataclass(frozen=True)
class LocalSteps(Algorithm):
    """Train locally, and average the changes of the parameters every H steps.

    Each worker steps its own optimizer, with its own gradients. The optimizer's state stays local.
    Every H steps, for each parameter x, where worker i has x_i:

        D_i = anchor - x_i    (compressed, with error feedback)
        D = mean of the D_i
        v = mu v + D

    then

        anchor = anchor - lr (D + mu v)    (without Nesterov's momentum: lr v)
        x_i = alpha x_i + (1 - alpha) anchor

    The anchor, which starts as the first parameter, and v are the same on all workers. With lr = 1,
    mu = 0 and alpha = 0, the new parameter is the average of the workers' parameters.

    With P fragments, the parameters are divided into P groups of about equal size. Each group is
    averaged every H steps, and the groups take turns every H/P steps. With an overlap of tau, D_i
    is sent in one step, and D is applied tau steps later, while training goes on.

    In the first `start` steps, the parameters are averaged in every step: H = 1, lr = 1, and mu,
    tau and alpha are 0. v stays 0.

    If an average fails because of a NaN or infinity, all parameters restart from their anchors, and
    averages under way are left out.

    Across sites (bps.init with a mailbox), H may differ between workers, or be a time. A worker may
    miss rounds: the anchor then moves as on the others, and x_i by the same amount.

    References
    ----------
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    2017 (FedAvg).
    Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", 2018 (`start`, which
    averages gradients there).
    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
    Douillard et al., "Streaming DiLoCo with Overlapping Communication", 2025 (P, tau and alpha).
    """

    name = "local_steps"
    description = "workers train locally, and average the changes of parameters every few steps"
    shared = ("anchor", "outer_momentum")
    allows_absence = True
    chosen_option = "every"
    spellings = {
        "sync_every": "every",  # of torchft's DiLoCo
        "fragment_sync_delay": "overlap",
        "fragment_update_alpha": "mix",
        "start_localSGD_iter": "start",  # of PyTorch's PostLocalSGDState
    }

    every: int | str = _EVERY.field(30)
    outer_lr: float = real(
        lambda lr: lr > 0, "a number > 0", "lr: learning rate of the outer step"
    ).field(0.7)
    outer_momentum: float = real(
        lambda mu: 0 <= mu < 1, "a number from 0 to below 1", "mu: momentum of the outer step"
    ).field(0.5)
    nesterov: bool = switch("use Nesterov's momentum in the outer step").field(True)
    fragments: int = whole(1, "P: number of groups of parameters, which take turns").field(1)
    overlap: int = whole(0, "tau: number of steps for which training goes on meanwhile").field(0)
    mix: float = real(
        lambda alpha: 0 <= alpha < 1,
        "a number from 0 to below 1",
        "alpha: share of its own parameters that a worker keeps",
    ).field(0.0)
    start: int = whole(0, "number of first steps that average parameters in every step").field(0)
    overrides: Mapping[str, Mapping[str, Any]] | None = Option(
        (Mapping, type(None)),
        lambda given: all(isinstance(options, Mapping) for options in (given or {}).values()),
        "a dict of a dict for each pattern of names",
        "other outer_lr, outer_momentum or nesterov for some parameters",
    ).field(None)

    def __post_init__(self) -> None:
        for option in ("fragments", "overlap") if self.in_lockstep else ():
            least = getattr(self, option) + (option == "overlap")
            if least > self.every:
                raise ValueError(
                    f"algorithm['every'] must be at least {least} with {option} "
                    f"{getattr(self, option)}, got {self.every}"
                )
        for pattern, options in (self.overrides or {}).items():
            for key, value in options.items():
                if key not in _OUTER:
                    raise ValueError(
                        f"algorithm['overrides'][{pattern!r}] may have {', '.join(_OUTER)}, "
                        f"got {key!r}"
                    )
                self.keys()[key].check(key, value, f"algorithm['overrides'][{pattern!r}]")

    @property
    def in_lockstep(self) -> bool:
        return not isinstance(self.every, str)

    def rounds(self, shapes: Shapes) -> Mapping[str, Shapes]:
        if not shapes:
            return {}
        require_matches(self.overrides or {}, shapes, "algorithm['overrides']")
        if self.fragments > len(shapes):
            raise ValueError(
                f"algorithm['fragments'] must be at most the number of parameters, "
                f"{len(shapes)}, got {self.fragments}"
            )
        return {
            kind: {name: shapes[name] for name in names}
            for kind, names in self._fragments(shapes).items()
        }

    def begin(self, parameters: Arrays) -> dict[str, dict[str, Array]]:
        return {
            "anchor": {name: 1.0 * x for name, x in parameters.items()},
            "outer_momentum": {name: 0.0 * x for name, x in parameters.items()},
        }

    def step(self, at: Step, state: State) -> Rounds:
        at.update()
        due = self._due(at)
        if not at.parameters or not (at.arrived or any(due)):
            return
        fragments = self._fragments({name: x.shape for name, x in at.parameters.items()})
        anchors, delay = state["anchor"], 0 if at.number <= self.start else self.overlap
        with _restarting(at, state):
            for wait in at.arrived.values():
                self._outer_step(wait(), at, state)
            for (kind, names), is_due in zip(fragments.items(), due):
                if is_due:
                    differences = {name: anchors[name] - at.parameters[name] for name in names}
                    mean = yield Round(kind, differences, delay)
                    self._outer_step(mean, at, state)

    def missed(self, averages: Arrays, parameters: Arrays, state: State) -> None:
        for name, difference in averages.items():
            before = state["anchor"][name]
            self._move_anchor(name, difference, state)
            x = parameters[name]
            x[:] = x + (state["anchor"][name] - before)

    def _due(self, at: Step) -> list[bool]:
        """Whether this step is the turn of each fragment."""
        if at.number <= self.start:
            return [True] * self.fragments
        if self.in_lockstep:
            turns = [(turn + 1) * self.every // self.fragments for turn in range(self.fragments)]
            return [(at.number - turn) % self.every == 0 for turn in turns]
        every, (before, now) = _seconds(self.every), at.seconds
        shares = [(turn + 1) / self.fragments for turn in range(self.fragments)]
        return [(now / every - share) // 1 > (before / every - share) // 1 for share in shares]

    def _fragments(self, shapes: Shapes) -> dict[str, list[str]]:
        """The parameters of each fragment, in the order of their turns, by the kind of round."""
        names: list[list[str]] = [[] for _ in range(self.fragments)]
        sizes = [math.prod(shape) for shape in shapes.values()]
        for name, fragment in zip(shapes, plan.assign(sizes, self.fragments)):
            names[fragment].append(name)
        if self.fragments == 1:
            return {"difference": names[0]}
        return {f"difference.{number}": of_fragment for number, of_fragment in enumerate(names)}

    def _outer_step(self, mean: Arrays, at: Step, state: State) -> None:
        """Change anchors, momentum and parameters by the mean differences."""
        at.framework.wait(mean.values())
        if at.number <= self.start:  # the momentum stays
            for name, difference in mean.items():
                state["anchor"][name] = state["anchor"][name] - difference
                at.parameters[name][:] = state["anchor"][name]
            return
        for name, difference in mean.items():
            self._move_anchor(name, difference, state)
            x, anchor = at.parameters[name], state["anchor"][name]
            x[:] = self.mix * x + (1.0 - self.mix) * anchor if self.mix else anchor

    def _move_anchor(self, name: str, difference: Array, state: State) -> None:
        """Change a parameter's anchor and momentum by the mean difference."""
        own = first_match(name, self.overrides or {}, {})
        lr, mu, nesterov = (own.get(option, getattr(self, option)) for option in _OUTER)
        velocity = mu * state["outer_momentum"][name] + difference
        ahead = difference + mu * velocity if nesterov else velocity
        state["anchor"][name] = state["anchor"][name] - lr * ahead
        state["outer_momentum"][name] = velocity


@contextmanager
def _restarting(at: Step, state: State) -> Iterator[None]:
    """If the block fails on all workers, set all parameters to their anchors."""
    try:
        yield
    except Exception:
        if at.abandon is not None:
            at.abandon()
            for name, parameter in at.parameters.items():
                parameter[:] = state["anchor"][name]
        raise
