"""Checks in each step that all workers have equal weights."""

from __future__ import annotations

import weakref
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch.optim import Optimizer

from .. import weight_samples
from . import gpu, staging
from .optimizer_hooks import param_groups, until_collected, watch_steps


class WeightSample(NamedTuple):
    """A few weights of one parameter, for the stamp of a later step.

    Parameters
    ----------
    number : int
        The position of the parameter, from 1. 0: there is no sample.
    weight, largest : float
        The first of the weights, and the largest magnitude among them.
    """

    number: int = 0
    weight: float = 0.0
    largest: float = 0.0


class WeightCheck:
    """Samples the weights after an optimizer has applied averages.

    ZeroRedundancyOptimizer calls the step of another optimizer, and broadcasts the weights after
    it. So the sample is taken after the outermost step.

    At other times weights need not be equal: a script may change them for a while, as
    sharpness-aware minimization does for a second backward pass.

    Parameters
    ----------
    parameters : mapping of str to Tensor
        By name.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        numbered = [(i, p) for i, p in enumerate(parameters.values(), 1) if p.numel()]
        self._numbered: List[Tuple[int, torch.Tensor]] = numbered
        self._known = {parameter for _, parameter in numbered}
        self._sizes = [staging.real_numel(parameter) for _, parameter in numbered]
        self._step, self._averaged = 0, False
        self._read: Callable[[], Optional[torch.Tensor]] = lambda: None
        self._number = 0
        self._outermost: Callable[[], Optional[Optimizer]] = lambda: None  # whose step runs
        this = weakref.ref(self)

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            check = this()
            if check is not None and check._outermost() is None:
                check._outermost = weakref.ref(optimizer)

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            check = this()
            if check is not None and check._outermost() is optimizer:
                check._outermost = lambda: None
                if check._averaged:
                    check._after_step(optimizer)

        # A script may compile a whole step, but torch.compile cannot trace the hooks.
        hooks = map(torch.compiler.disable, (before, after))
        self.close = until_collected(self, watch_steps(*hooks))

    def begin(self) -> WeightSample:
        """Begin a step, and return the last sample."""
        self._step, self._averaged = self._step + 1, True
        values = self._read()
        if values is None:
            return WeightSample()
        return WeightSample(self._number, float(values[0]), float(values.abs().max()))

    def _after_step(self, optimizer: Optimizer) -> None:
        """Take a sample if an optimizer has stepped some of the parameters."""
        groups = param_groups(optimizer)
        if not any(parameter in self._known for group in groups for parameter in group["params"]):
            return
        self._averaged = False
        sample = weight_samples.sample(self._step, self._sizes)
        self._number, parameter = self._numbered[sample.parameter]
        values = staging.as_real(parameter.detach())
        elements = torch.arange(sample.begin, sample.end, device=values.device)
        self._read = gpu.copied_later(values.take(elements).float())
