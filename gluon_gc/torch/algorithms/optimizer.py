"""DistributedOptimizer with an algorithm.

Each worker steps its own optimizer. The algorithm's rounds average vectors over the workers.
"""

from __future__ import annotations

from contextlib import contextmanager
from inspect import signature
from typing import Any, Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ...algorithms import Algorithm
from ...algorithms.requirements import require_on_nonfinite
from ...mailbox.driver import MailboxDriver
from ..gradients.optimizer_hooks import contained, without_gradients
from ..gradients.scaler import if_enabled
from ..gradients.settings import checked_passes
from ..optimizer.copies import Distributed, kind_of
from .state import AlgorithmState


class Stepping(Distributed):
    """The methods that an algorithm adds to the optimizer's class.

    They have the names that scripts with averaged gradients call. Gradients are not averaged here;
    they add up over all backward passes before `step`.
    """

    _algorithm: AlgorithmState
    _update: Callable[..., Any]
    _step_supports_amp_scaling = True  # so that GradScaler always calls `step`

    @property
    def compression_state(self) -> AlgorithmState:
        """The algorithm's state, for statistics, epochs and checkpoints."""
        return self._algorithm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step of the algorithm. All workers call this."""
        if self._algorithm.algorithm.averages_gradients:
            loss = _step_of_all(self, closure)
        else:
            losses: list[Any] = []
            arguments = () if closure is None else (closure,)
            overflows = None
            if isinstance(self._algorithm.driver, MailboxDriver):
                overflows = _overflows(vars(self))
            self._algorithm.step(lambda: losses.append(_scaled(self, arguments)), overflows)
            loss = losses[-1] if losses else None
        self._opt_called = True  # read by learning-rate schedulers
        return loss

    step.hooked = True  # PyTorch need not wrap it: the optimizer's own step calls the hooks
    step._wrapped_by_lr_sched = True  # nor need schedulers, which only set _opt_called

    def synchronize(self) -> None:
        """Do nothing, because gradients are this worker's own."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context without effect: a step within it is a step of the algorithm, too."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Do nothing, because the gradients of all backward passes before `step` are added up."""
        checked_passes(passes)


def with_algorithm(
    optimizer: Optimizer,
    named_parameters: Any,
    algorithm: Algorithm,
    option_given: bool,
    compression_params: Mapping[str, Any] | None,
    on_nonfinite: str = "raise",
    grad_scaler: Any | None = None,
    **options: Any,
) -> None:
    """Make an optimizer step by an algorithm; see `AlgorithmState` and `DistributedOptimizer`."""
    if if_enabled(grad_scaler) is not None:
        raise ValueError(
            f"grad_scaler is for gradients that are averaged: with algorithm {algorithm.name}, "
            "leave it out, and call the scaler's step() and update() as usual"
        )
    require_on_nonfinite(algorithm, on_nonfinite, ("raise",))
    if algorithm.averages_gradients:
        _require_optional_closure(algorithm.name, optimizer)
    else:
        _require_local_step(algorithm.name, optimizer, options.get("process_group"))
    kind, update = kind_of(optimizer), optimizer.step
    state = AlgorithmState(
        named_parameters,
        algorithm,
        option_given,
        compression_params,
        optimizer,
        on_nonfinite=on_nonfinite,
        **options,
    )
    vars(optimizer).pop("step", None)  # a learning-rate scheduler's wrapper; `update` calls it
    step = torch.compiler.disable(Stepping.step)  # in case that a script compiles it
    optimizer.__class__ = type(kind.__name__, (Stepping, kind), {"step": step})
    optimizer._algorithm, optimizer._update = state, update


def _require_optional_closure(name: str, optimizer: Optimizer) -> None:
    """Raise ValueError if an optimizer's step needs a closure: the algorithm passes none."""
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"algorithm {name} needs an optimizer that steps without a closure, got "
            f"{kind_of(optimizer).__name__}: use another optimizer, or leave out algorithm"
        )


def _require_local_step(name: str, optimizer: Optimizer, group: dist.ProcessGroup | None) -> None:
    """Raise ValueError if an optimizer's step exchanges weights with other workers of a group."""
    own = dist.group.WORLD if group is None else group
    for part in contained(optimizer):
        # Its module takes long to import.
        if "ZeroRedundancyOptimizer" in [kind.__name__ for kind in type(part).__mro__]:
            groups = map(dist.get_process_group_ranks, (own, part.process_group))
            if len(set.intersection(*map(set, groups))) > 1:
                raise ValueError(
                    f"algorithm {name} needs an optimizer whose steps are local, got "
                    "ZeroRedundancyOptimizer, whose steps replace weights by those of other "
                    "workers: pass the optimizer that it was made of, or leave out algorithm"
                )


def _scaled(optimizer: Stepping, arguments: Any) -> Any:
    """Call the optimizer's own step. If a GradScaler is the caller, unscale the gradients first.

    If the scaler has found an infinity, the optimizer does not step. The algorithm still counts the
    step, because the scalers of other workers may not have skipped it.
    """
    own = getattr(kind_of(optimizer), "_step_supports_amp_scaling", False)
    if vars(optimizer).get("_step_supports_amp_scaling", own):
        return optimizer._update(*arguments)
    with _unscaled(optimizer) as overflows:
        return None if overflows else optimizer._update(*arguments)


def _step_of_all(optimizer: Stepping, closure: Callable[[], Any] | None) -> Any:
    """Make a step of an algorithm that averages gradients, and return the closure's loss."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    updates: list[Any] = []
    with _unscaled(optimizer) as overflows:
        made = optimizer._algorithm.step(lambda: updates.append(optimizer._update()), overflows)
        if made and not updates:
            with without_gradients(_parameters(optimizer)):
                optimizer._update()  # it only calls hooks
    return loss


@contextmanager
def _unscaled(optimizer: Stepping) -> Iterator[bool | None]:
    """Unscale the gradients if a GradScaler calls a step, and hide it from the optimizer.

    The context's value is whether the scaler has found an infinity; None without a scaler.
    """
    attributes = vars(optimizer)
    taken = {key: attributes.pop(key) for key in ("found_inf", "grad_scale") if key in attributes}
    overflows = _overflows(taken)
    try:
        if not overflows and taken.get("grad_scale") is not None:
            factor = 1.0 / float(taken["grad_scale"])
            for parameter in _parameters(optimizer):
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        yield overflows
    finally:
        attributes.update(taken)  # the scaler deletes them


def _overflows(attributes: Mapping[str, Any]) -> bool | None:
    """Whether a GradScaler has found an infinity, by the attributes that it gives an optimizer."""
    return bool(attributes["found_inf"]) if "found_inf" in attributes else None


def _parameters(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]
