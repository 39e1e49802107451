"""local_steps: workers train locally, and average the changes of parameters every few steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping

from ..options import real, switch, whole
from .base import Algorithm, Array, Arrays, Round, Rounds, Shapes, Step, register


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
        x_i = anchor

    The anchor, the parameter after the last average, and v are the same on all workers. With lr = 1
    and mu = 0, the new parameter is the average of the workers' parameters.

    References
    ----------
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    2017 (FedAvg).
    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
    """

    name = "local_steps"
    description = "workers train locally, and average the changes of parameters every few steps"
    shared = ("anchor", "outer_momentum")

    every: int = whole(1, "H: number of steps between averages").field(30)
    outer_lr: float = real(
        lambda lr: lr > 0, "a number > 0", "lr: learning rate of the outer step"
    ).field(0.7)
    outer_momentum: float = real(
        lambda mu: 0 <= mu < 1, "a number from 0 to below 1", "mu: momentum of the outer step"
    ).field(0.9)
    nesterov: bool = switch("use Nesterov's momentum in the outer step").field(True)

    def rounds(self, shapes: Shapes) -> Mapping[str, Shapes]:
        return {"difference": shapes}

    def begin(self, parameters: Arrays) -> Dict[str, Dict[str, Array]]:
        return {
            "anchor": {name: 1.0 * x for name, x in parameters.items()},
            "outer_momentum": {name: 0.0 * x for name, x in parameters.items()},
        }

    def step(self, at: Step, state: Mapping[str, Dict[str, Array]]) -> Rounds:
        at.update()
        if at.number % self.every:
            return
        anchors, velocities = state["anchor"], state["outer_momentum"]
        mean = yield Round("difference", {n: anchors[n] - x for n, x in at.parameters.items()})
        for name, x in at.parameters.items():
            velocity = self.outer_momentum * velocities[name] + mean[name]
            ahead = mean[name] + self.outer_momentum * velocity if self.nesterov else velocity
            anchors[name] = anchors[name] - self.outer_lr * ahead
            velocities[name] = velocity
            x[:] = anchors[name]
