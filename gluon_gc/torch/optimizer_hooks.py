"""Hooks into the step of an optimizer."""

from __future__ import annotations

from typing import Any, Callable, Collection, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

Arguments = Optional[Tuple[Tuple[Any, ...], dict]]

_WRAPPERS = {"AcceleratedOptimizer", "LightningOptimizer"}  # of Accelerate and of Lightning


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer that Accelerate or Lightning has wrapped, or the argument itself.

    A wrapper has the parameter groups of its optimizer, but not its hooks.
    """
    while any(kind.__name__ in _WRAPPERS for kind in type(optimizer).__mro__):
        optimizer = optimizer.optimizer
    return optimizer


def param_groups(optimizer: Optimizer) -> List[dict]:
    """Return an optimizer's parameter groups without the side effects of reading its attribute."""
    return vars(optimizer)["param_groups"]


def require_averaged(optimizer: Optimizer, known: Collection[torch.Tensor]) -> None:
    """Raise a RuntimeError if a parameter with a gradient is not in `known`."""
    for number, group in enumerate(param_groups(optimizer)):
        for parameter in group["params"]:
            if parameter.grad is not None and parameter not in known:
                raise RuntimeError(
                    f"a parameter of shape {tuple(parameter.shape)} in the optimizer's group "
                    f"{number} is not averaged: it was added, or unfrozen, after "
                    "DistributedOptimizer was made"
                )


def closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[Callable[[], Any]]:
    """Return the closure in the arguments of a hook before a step, if there is one."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def with_closure(args: Sequence[Any], kwargs: Mapping[str, Any], closure: Any) -> Arguments:
    """Return these arguments with another closure."""
    if "closure" in kwargs:
        return tuple(args), {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), dict(kwargs)


def before_step(optimizer: Optimizer, action: Callable[[], None]) -> RemovableHandle:
    """Call `action` before each step, or after each call of the step's closure."""

    def hook(optimizer: Optimizer, args: Tuple[Any, ...], kwargs: dict) -> Arguments:
        closure = closure_of(args, kwargs)
        if closure is None:
            action()
            return None

        def closure_and_action() -> Any:
            loss = closure()
            action()
            return loss

        return with_closure(args, kwargs, closure_and_action)

    return optimizer.register_step_pre_hook(hook)
