"""PyTorch's Adam and AdamW, for algorithms that need Adam."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import torch
from torch.optim import Optimizer

from ...algorithms.adam import Update
from ..gradients.optimizer_hooks import param_groups
from ..gradients.optimizers import KNOWN
from ..optimizer.copies import kind_of
from ..transport.staging import is_sharded
from .rounds import local

_REFUSED = ("amsgrad", "maximize", "fused", "capturable", "differentiable")
"""Settings of a parameter group that change the update or where the step count is."""


class WrappedAdam:
    """PyTorch's front end of `algorithms.adam.Adam`, for one step.

    The moments are the optimizer's own tensors. Each parameter that is not frozen has a gradient.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._groups, self._kind = dict(_groups_of(optimizer)), kind_of(optimizer)

    def moments(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        state = self._state(name)
        return local(state["exp_avg"]), local(state["exp_avg_sq"])

    def variance(self, name: str) -> torch.Tensor:
        """Return the sum of exp_avg_sq over the shards of all workers, which call this together."""
        total = self._state(name)["exp_avg_sq"].sum()
        return total.full_tensor() if is_sharded(total) else total

    def betas(self, name: str) -> tuple[float, float]:
        beta1, beta2 = self._group(name)["betas"]
        return float(beta1), float(beta2)

    def gradient(self, name: str) -> torch.Tensor:
        """Return this worker's gradient, with weight decay if it is coupled."""
        parameter, decay = self._parameters[name], self._group(name)["weight_decay"]
        if not decay or self._is_decoupled(name):
            return local(parameter.grad)
        return local(parameter.grad) + decay * local(parameter.detach())

    def as_float(self, number: torch.Tensor) -> float:
        return float(number)

    def count(self) -> None:
        """Count a step that the algorithm makes."""
        for name in self._parameters:
            self._state(name)["step"] += 1

    @property
    def steps(self) -> int:
        """The number of steps that the optimizer has counted for the first parameter."""
        state = self._optimizer.state.get(next(iter(self._parameters.values())), {})
        return int(state.get("step", 0))

    def update(self, name: str, frozen: float) -> Update:
        """Return the update of a parameter, whose exp_avg_sq did not change in `frozen` steps."""
        state, group = self._state(name), self._group(name)
        steps, lr, (beta1, beta2) = float(state["step"]), float(group["lr"]), self.betas(name)
        correction = (1 - beta2 ** max(1, steps - frozen)) ** 0.5
        denominator = (local(state["exp_avg_sq"]).sqrt() / correction).add_(group["eps"])
        decay = lr * group["weight_decay"] if self._is_decoupled(name) else 0.0
        return Update(lr / (1 - beta1**steps), denominator, decay)

    def _state(self, name: str) -> dict[str, Any]:
        """Return the optimizer's state of a parameter, which is new before its first step."""
        parameter = self._parameters[name]
        state = self._optimizer.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0, device="cpu")
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    def _group(self, name: str) -> dict[str, Any]:
        return self._groups[self._parameters[name]]

    def _is_decoupled(self, name: str) -> bool:
        # Older versions do not say it in the group.
        default = any(k.kind is self._kind and k.decouples_decay for k in KNOWN)
        return self._group(name).get("decoupled_weight_decay", default)


def _groups_of(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    for group in param_groups(optimizer):
        for parameter in group["params"]:
            yield parameter, group


def require_adam(
    name: str, optimizer: Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    """Raise ValueError unless an optimizer is an Adam that an algorithm can work with."""
    kind = kind_of(optimizer)
    if kind not in [known.kind for known in KNOWN if known.is_adam]:
        raise ValueError(
            f"algorithm {name} needs torch.optim.Adam or torch.optim.AdamW, got {kind.__name__}"
        )
    require_settings(name, optimizer)
    stepped = dict(_groups_of(optimizer))
    for parameter_name, parameter in parameters.items():
        if parameter not in stepped:
            raise ValueError(
                f"algorithm {name} needs all named_parameters in the optimizer, but parameter "
                f"{parameter_name} is not"
            )


def require_settings(name: str, optimizer: Optimizer) -> None:
    """Raise ValueError unless an algorithm works with the settings of all parameter groups.

    A loaded state of the optimizer replaces the settings, so each step calls this.
    """
    kind = kind_of(optimizer).__name__
    for group in param_groups(optimizer):
        for key in _REFUSED:
            if group.get(key):
                raise ValueError(
                    f"algorithm {name} needs {key}=False of {kind}, got {group[key]!r}"
                )
        if group["eps"] <= 0:
            raise ValueError(f"algorithm {name} needs eps > 0 of {kind}, got {group['eps']!r}")
