"""What is done before an optimizer steps, by the hook that PyTorch has for it."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

from torch.optim import Optimizer

Arguments = Optional[Tuple[Tuple[Any, ...], dict]]


def before_step(optimizer: Optimizer, action: Callable[[], None]) -> None:
    """Call `action` before each step; with a closure, each time after it has made gradients."""

    def hook(optimizer: Optimizer, args: Tuple[Any, ...], kwargs: dict) -> Arguments:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            action()
            return None

        def and_action() -> Any:
            loss = closure()
            action()
            return loss

        return (optimizer, and_action), {}

    optimizer.register_step_pre_hook(hook)
