"""A worker's own gradients for an algorithm, and parameters that were frozen."""

from __future__ import annotations

from typing import Iterable, Mapping

import torch

from ...algorithms import Algorithm


def is_frozen(parameter: torch.nn.Parameter) -> bool:
    """Return whether a parameter needs no gradient and has none, so that optimizers skip it."""
    return not parameter.requires_grad and parameter.grad is None


def require_unfrozen(algorithm: Algorithm, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Raise a RuntimeError if a parameter is frozen that the algorithm would still change."""
    for name, parameter in parameters.items():
        if not (parameter.requires_grad or algorithm.allows_freezing):
            raise RuntimeError(
                f"parameter {name} was frozen after DistributedOptimizer was made, but algorithm "
                f"{algorithm.name} would still change it: unfreeze it, or make a new optimizer"
            )


def fill_gradients(name: str, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Set missing gradients to zeros, except of frozen parameters.

    Raise ValueError if a gradient is sparse. `name` is the name of the algorithm.
    """
    for parameter_name, parameter in parameters.items():
        if is_frozen(parameter):
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.layout is not torch.strided:
            raise ValueError(
                f"algorithm {name} needs dense gradients, but the gradient of parameter "
                f"{parameter_name} is sparse"
            )


def first_nonfinite(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Return the number of the first parameter whose gradient has a NaN or an infinity, or -1."""
    gradients = [(i, p.grad) for i, p in enumerate(parameters) if p.grad is not None]
    if not gradients:
        return -1
    device = gradients[0][1].device
    finite = torch.stack([gradient.isfinite().all().to(device) for _, gradient in gradients])
    return next((i for (i, _), good in zip(gradients, finite.tolist()) if not good), -1)
