"""Checks in each step that all workers have equal weights."""

from __future__ import annotations

import weakref
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch.optim import Optimizer

from ... import weight_samples
from .. import gpu, staging
from .optimizer_hooks import steps_any, watch_while_alive


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
        self.close = watch_while_alive(self, before=self._before_step, after=self._after_step)

    def begin(self) -> WeightSample:
        """Begin a step, and return the last sample."""
        self._step, self._averaged = self._step + 1, True
        values = self._read()
        if values is None:
            return WeightSample()
        return WeightSample(self._number, float(values[0]), float(values.abs().max()))

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._outermost() is None:
            self._outermost = weakref.ref(optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Take a sample if the outermost step has applied averages to some of the parameters."""
        if self._outermost() is not optimizer:
            return
        self._outermost = lambda: None
        if not self._averaged or not steps_any(optimizer, self._known):
            return
        self._averaged = False
        sample = weight_samples.sample(self._step, self._sizes)
        self._number, parameter = self._numbered[sample.parameter]
        values = staging.as_real(parameter.detach())
        elements = torch.arange(sample.begin, sample.end, device=values.device)
        self._read = gpu.copied_later(values.take(elements).float())
