"""DistributedOptimizer with an algorithm: each worker steps its own optimizer, between rounds."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Mapping, Optional

import torch.distributed as dist
from torch.optim import Optimizer

from ..algorithms import Algorithm
from .algorithm_state import AlgorithmState, Overrides
from .averager import checked_passes
from .copies import Distributed, kind_of


class Stepping(Distributed):
    """The methods that an algorithm adds to the optimizer's class.

    Scripts for averaged gradients can call the same methods. Gradients are not averaged here. They
    add up over all backwards before `step`.
    """

    _algorithm: AlgorithmState
    _update: Callable[..., Any]
    _step_supports_amp_scaling = True  # GradScaler calls `step` then, whatever it has found

    @property
    def compression_state(self) -> AlgorithmState:
        """The algorithm's state, which has its stats, epochs and checkpoints."""
        return self._algorithm

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Make a step of the algorithm; all workers call this."""
        losses: List[Any] = []
        arguments = () if closure is None else (closure,)
        self._algorithm.step(lambda: losses.append(_scaled(self, arguments)))
        self._opt_called = True  # which learning-rate schedulers look at
        return losses[-1] if losses else None

    step.hooked = True  # the optimizer's own step calls the hooks
    step._wrapped_by_lr_sched = True  # schedulers need not wrap it to see that it is called

    def synchronize(self) -> None:
        """Does nothing: gradients are this worker's own."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Changes nothing: a step of the algorithm is made within as well."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes nothing: the gradients of all backwards before `step` are added up."""
        checked_passes(passes)


def with_algorithm(
    optimizer: Optimizer,
    named_parameters: Any,
    algorithm: Algorithm,
    compression_params: Optional[Mapping[str, Any]],
    process_group: Optional[dist.ProcessGroup] = None,
    overrides: Optional[Overrides] = None,
    on_nonfinite: str = "raise",
    grad_scaler: Optional[Any] = None,
) -> Optimizer:
    """Let an optimizer step by an algorithm; the arguments are those of `DistributedOptimizer`."""
    if grad_scaler is not None:
        raise ValueError(
            "grad_scaler is for gradients that are averaged; with algorithm "
            f"{algorithm.name} leave it out, and call the scaler's step() and update() as ever"
        )
    if on_nonfinite != "raise":
        raise ValueError(
            f"on_nonfinite must be 'raise' with algorithm {algorithm.name}, got {on_nonfinite!r}: "
            "it is for gradients that are averaged"
        )
    kind, update = kind_of(optimizer), optimizer.step
    state = AlgorithmState(
        named_parameters, algorithm, compression_params, optimizer, process_group, overrides
    )
    vars(optimizer).pop("step", None)  # a learning-rate scheduler's, which `update` calls
    optimizer.__class__ = type(kind.__name__, (Stepping, kind), {})
    optimizer._algorithm, optimizer._update = state, update
    return optimizer


def _scaled(optimizer: Stepping, arguments: Any) -> Any:
    """Call the optimizer's own step. If a GradScaler has called, unscale gradients before it.

    If the scaler has found an infinity, the optimizer does not step. The algorithm counts the step,
    because the scalers of other workers may not have skipped it.
    """
    own = getattr(kind_of(optimizer), "_step_supports_amp_scaling", False)
    if vars(optimizer).get("_step_supports_amp_scaling", own):
        return optimizer._update(*arguments)
    attributes = vars(optimizer)
    given = {key: attributes.pop(key) for key in ("found_inf", "grad_scale") if key in attributes}
    try:
        if given.get("found_inf"):
            return None
        if given.get("grad_scale") is not None:
            _multiply_gradients(optimizer, 1.0 / float(given["grad_scale"]))
        return optimizer._update(*arguments)
    finally:
        attributes.update(given)  # the scaler deletes them


def _multiply_gradients(optimizer: Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
