"""A worker's own gradients, for algorithms that average gradients in every step."""

from __future__ import annotations

from typing import Iterable, Mapping

import torch


def fill_gradients(name: str, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Set missing gradients to zeros. Raise ValueError if a gradient is sparse.

    `name` is the name of the algorithm.
    """
    for parameter_name, parameter in parameters.items():
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
