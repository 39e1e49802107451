"""Errors that name what would be silently wrong.

They are: a communication hook that was not registered, two objects that average the same gradient,
an optimizer that the CompressionState does not know, and weights that differ between workers.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, Callable, Collection, Mapping

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ...exchange import weight_samples
from ..transport import gpu, staging
from .optimizer_hooks import StepObserver, contained, param_groups, steps_any

if TYPE_CHECKING:
    from .state import CompressionState
    from .steps import GradientCompression

_states: weakref.WeakSet[CompressionState] = weakref.WeakSet()
"""All CompressionStates of this process."""

_distributed: weakref.WeakSet[CompressionState] = weakref.WeakSet()
"""Those of DistributedOptimizers."""


def add_state(state: CompressionState, distributed: bool) -> None:
    """Register a state, which a DistributedOptimizer may have made, for `require_single`."""
    (_distributed if distributed else _states).add(state)


def require_single(parameters: Collection[torch.Tensor], distributed: bool) -> None:
    """Raise ValueError if a gradient would be averaged twice in a backward pass.

    Two CompressionStates may have the same parameter, because each DistributedDataParallel averages
    gradients only after its own forward. A state of a DistributedOptimizer and another may not.
    """
    others = _states if distributed else _distributed
    if _shared(parameters, others):
        gc.collect()  # cycles keep a state that was dropped without close()
    shared = _shared(parameters, others)
    if shared:
        raise ValueError(
            "an earlier DistributedOptimizer or CompressionState averages the gradient of "
            f"parameter {shared[0]}: call close() of the earlier state, which is the "
            "compression_state of a DistributedOptimizer, first"
        )


def _shared(
    parameters: Collection[torch.Tensor], others: weakref.WeakSet[CompressionState]
) -> list[str]:
    """Return the names that open states have for these parameters."""
    ids = set(map(id, parameters))
    return [
        name
        for state in list(others)
        if not state.gradients.closed
        for name, parameter in state.parameters.items()
        if id(parameter) in ids
    ]


def require_no_ddp(parameters: Collection[torch.Tensor]) -> None:
    """Raise RuntimeError if a DistributedDataParallel in use writes to these gradients, too."""
    ids = set(map(id, parameters))
    if _in_ddp(ids):
        gc.collect()  # cycles keep one that was dropped
    if _in_ddp(ids):
        raise RuntimeError(
            "DistributedDataParallel averages gradients of the DistributedOptimizer, too: train "
            "the model without DistributedDataParallel, or register bps.compression_hook and use "
            "the optimizer without DistributedOptimizer"
        )


def _in_ddp(ids: set[int]) -> bool:
    """Return whether a DistributedDataParallel that has run has one of these parameters."""
    kinds = DistributedDataParallel, *DistributedDataParallel.__subclasses__()
    return any(
        isinstance(each, DistributedDataParallel)
        and vars(each).get("_lazy_init_ran", True)  # the first forward sets it
        and not ids.isdisjoint(map(id, each.parameters()))
        for each in gc.get_referrers(*kinds)
    )


class HookCheck(StepObserver):
    """Raises an error when an optimizer uses gradients of a state that no hook exchanges.

    Such a script would train without compression, without the optimizer's momentum and, if it does
    not use DistributedDataParallel, without the other workers. The check ends when the state's
    first exchange begins.
    """

    def __init__(self, state: CompressionState) -> None:
        super().__init__()
        self._state = weakref.ref(state)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        state = self._state()
        if state is None or not state.gradients.has_computed:
            return
        if state.exchange.workers == 1 and state.momentum is None:
            return  # nothing is lost: such a script makes no DistributedDataParallel
        if not steps_any(optimizer, set(map(id, state.parameters.values()))):
            return
        # A DistributedDataParallel that has the state steps in no_sync.
        if not any(
            isinstance(pair, tuple) and len(pair) == 2 and callable(pair[0]) and pair[1] is state
            for pair in gc.get_referrers(state)
        ):
            raise RuntimeError(
                "the optimizer steps, but no gradient of its CompressionState was exchanged: "
                "register the hook with ddp.register_comm_hook(state, bps.compression_hook) before "
                "the first backward"
            )
        self.leave()


class OptimizerCheck(StepObserver):
    """Raises an error if an optimizer would apply momentum twice, or would not skip a step.

    Compression applies momentum, and skips steps, for the optimizer of its CompressionState only.
    If it `skips` steps, no other optimizer may step any of the parameters. Otherwise, others may
    step the parameters whose compressor applies no momentum.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        compression: GradientCompression,
        optimizer: Optimizer,
        skips: bool,
    ) -> None:
        super().__init__()
        self._parameters, self._compression = parameters, compression
        self._optimizer, self._skips = optimizer, skips
        self._averaged = False  # whether there are averages that this optimizer will apply
        # The number of groups of each optimizer that steps none of the parameters.
        self._harmless: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def begin(self) -> None:
        """Tell that gradients are being averaged."""
        self._averaged = True

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        groups = param_groups(optimizer)
        if self._harmless.get(optimizer) == len(groups):
            return
        if self._belongs(optimizer):
            self._averaged = False
            return
        exempted = () if self._skips else self._compression.without_momentum
        stepped = {id(p) for group in groups for p in group["params"]}
        affected = {
            name: parameter
            for name, parameter in self._parameters.items()
            if name not in exempted and id(parameter) in stepped
        }
        if not affected:
            self._harmless[optimizer] = len(groups)
            return
        own = {id(p) for group in param_groups(self._optimizer) for p in group["params"]}
        for name, parameter in affected.items():
            if parameter.grad is not None and (self._averaged or id(parameter) not in own):
                raise RuntimeError(
                    f"parameter {name} is stepped by another optimizer than that "
                    "of its CompressionState, but compression applies momentum, or skips steps, "
                    "for that one only: make the state with the optimizer that steps all its "
                    "parameters, or leave out 'momentum' (and use another compressor than dgc) "
                    "and on_nonfinite='skip'"
                )

    def _belongs(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer is that of the state, or a part of it, or contains it.

        CrossBarrier's optimizers share its state.
        """
        own = self._optimizer
        is_part = optimizer in contained(own) or own in contained(optimizer)
        return is_part or optimizer.state is own.state


class WeightCheck(StepObserver):
    """Samples the weights after an optimizer has applied averages: they must be equal everywhere.

    ZeroRedundancyOptimizer calls the step of another optimizer, and broadcasts the weights after
    it. So the sample is taken after the outermost step. At other times weights need not be equal:
    a script may change them for a while, as sharpness-aware minimization does.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._numbered = [(i, p) for i, p in enumerate(parameters.values(), 1) if p.numel()]
        self._ids = {id(parameter) for _, parameter in self._numbered}
        self._sizes = [staging.real_numel(parameter) for _, parameter in self._numbered]
        self._step, self._averaged = 0, False
        self._read: Callable[[], torch.Tensor | None] = lambda: None
        self._sampled = 0  # the number of the parameter of the last sample
        self._outermost: Callable[[], Optimizer | None] = lambda: None  # whose step runs

    def begin(self) -> Callable[[], tuple[int, float, float]]:
        """Begin a step, and return a function that waits for the last sample and returns it.

        It is the number of a parameter, from 1, the first of a few of its weights, and the largest
        magnitude among them. Number 0: there is no sample.
        """
        self._step, self._averaged = self._step + 1, True
        number, read = self._sampled, self._read

        def sample() -> tuple[int, float, float]:
            values = read()
            if values is None:
                return 0, 0.0, 0.0
            elements = values.numpy()
            return number, float(elements[0]), float(np.abs(elements).max())

        return sample

    def skip(self) -> None:
        """Begin a step that only other workers make. This one has no sample of their weights."""
        self.begin()
        self._averaged, self._read = False, lambda: None

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._outermost() is None:
            self._outermost = weakref.ref(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        if self._outermost() is not optimizer:
            return
        self._outermost = lambda: None
        if not self._averaged or not steps_any(optimizer, self._ids):
            return
        self._averaged = False
        sample = weight_samples.sample(self._step, self._sizes)
        self._sampled, parameter = self._numbered[sample.parameter]
        values = staging.as_real(parameter.detach())
        elements = torch.arange(sample.begin, sample.end, device=values.device)
        self._read = gpu.copied_later(values.take(elements).float())
