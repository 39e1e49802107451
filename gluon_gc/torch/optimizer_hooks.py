"""Hooks into the step of an optimizer."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Collection, Iterable, List, Optional, Tuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
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


def before_step(optimizer: Optimizer, action: Callable[[], None]) -> RemovableHandle:
    """Call `action` before each step, or after each call of the step's closure."""

    def hook(optimizer: Optimizer, args: Tuple[Any, ...], kwargs: dict) -> Arguments:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            action()
            return None

        def closure_and_action() -> Any:
            loss = closure()
            action()
            return loss

        return (optimizer, closure_and_action), {}

    return optimizer.register_step_pre_hook(hook)


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls a bound method while its object exists.

    Parameters keep their hooks in C++, where Python's garbage collector does not find a cycle.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        found = reference()
        if found is not None:
            found(*args)

    return call


class StepWatch:
    """Records whether any optimizer steps some of these parameters.

    Parameters
    ----------
    parameters : iterable of Tensor
        They must live at least as long as this object.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._stepped = self._steps = False
        known = set(map(id, parameters))
        watch = weakref.ref(self)

        def note(begins: bool) -> Callable[[Optimizer, Any, Any], None]:
            def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
                groups = param_groups(optimizer)
                if watch() and any(id(p) in known for group in groups for p in group["params"]):
                    watch()._steps, watch()._stepped = begins, True

            return hook

        registered = (
            register_optimizer_step_pre_hook(note(True)),
            register_optimizer_step_post_hook(note(False)),
        )
        self._end = weakref.finalize(self, _remove, registered)

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has stepped since the last `restart`, or is in a step now.

        A step with a closure may run backward several times.
        """
        return self._stepped or self._steps

    def restart(self) -> None:
        """Forget the steps so far."""
        self._stepped = False

    def close(self) -> None:
        """Stop recording."""
        self._end()


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
