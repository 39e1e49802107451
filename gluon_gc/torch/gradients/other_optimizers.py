"""Refuses steps of optimizers that the CompressionState of their parameters does not know."""

from __future__ import annotations

import weakref
from typing import Any, Mapping

import torch
from torch.optim import Optimizer

from .compression import GradientCompression
from .optimizer_hooks import contained, param_groups, watch_while_alive


class OtherOptimizers:
    """Raises an error if an optimizer would apply momentum twice, or would not skip a step.

    Compression applies momentum, and skips steps, for the optimizer of its CompressionState only.

    Parameters
    ----------
    names : mapping of Tensor to str
        The names of the parameters.
    compression : GradientCompression
    optimizer : Optimizer
        The optimizer of the CompressionState.
    skips : bool
        Whether its steps are skipped, so that no other optimizer may step any of the parameters.
        Otherwise, others may step the parameters whose compressor applies no momentum.
    """

    def __init__(
        self,
        names: Mapping[torch.Tensor, str],
        compression: GradientCompression,
        optimizer: Optimizer,
        skips: bool,
    ) -> None:
        self._names, self._compression = names, compression
        self._optimizer, self._skips = optimizer, skips
        self._averaged = False  # whether there are averages that this optimizer will apply
        # The number of groups of each optimizer that steps none of the parameters.
        self._harmless: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self.close = watch_while_alive(self, before=self._before_step)

    def begin(self) -> None:
        """Tell that gradients are being averaged."""
        self._averaged = True

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Raise a RuntimeError if this optimizer must not step some of the parameters."""
        groups = param_groups(optimizer)
        if self._harmless.get(optimizer) == len(groups):
            return
        if self._belongs(optimizer):
            self._averaged = False
            return
        parameters = [p for group in groups for p in group["params"] if self._is_affected(p)]
        if not parameters:
            self._harmless[optimizer] = len(groups)
            return
        own = {p for group in param_groups(self._optimizer) for p in group["params"]}
        for parameter in parameters:
            if parameter.grad is not None and (self._averaged or parameter not in own):
                raise RuntimeError(
                    f"parameter {self._names[parameter]} is stepped by another optimizer than that "
                    "of its CompressionState, but compression applies momentum, or skips steps, "
                    "for that one only: make the state with the optimizer that steps all its "
                    "parameters, or leave out 'momentum' (and use another compressor than dgc) "
                    "and on_nonfinite='skip'"
                )

    def _is_affected(self, parameter: torch.Tensor) -> bool:
        name = self._names.get(parameter)
        exempted = () if self._skips else self._compression.without_momentum
        return name is not None and name not in exempted

    def _belongs(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer is that of the state, or a part of it, or contains it.

        CrossBarrier's optimizers share its state.
        """
        own = self._optimizer
        is_part = optimizer in contained(own) or own in contained(optimizer)
        return is_part or optimizer.state is own.state
