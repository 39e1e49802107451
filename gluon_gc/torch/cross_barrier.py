"""CrossBarrier: averaging continues during the next forward.

The names are those of byteps.torch.cross_barrier.

    import gluon_gc.torch.cross_barrier as bps
"""

from __future__ import annotations

import copyreg
from typing import Any, Dict, Iterable, Optional, Tuple

import torch
from torch.nn import Module
from torch.optim import SGD, Adam, Optimizer, RMSprop

from ..options import is_whole
from .byteps.broadcasts import broadcast_optimizer_state, broadcast_parameters
from .byteps.push_pull import byteps_push_pull, poll, synchronize
from .byteps.runtime import init, local_rank, local_size, rank, shutdown, size
from .compression import Compression
from .crossing import CrossingAverager
from .gradients.optimizer_hooks import watch_steps
from .gradients.state import CompressionState
from .optimizer.copies import kind_of
from .optimizer.distributed import Averaging, DistributedOptimizer

__all__ = [
    "Compression",
    "CrossBarrier",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]

_KINDS = (SGD, Adam, RMSprop)  # optimizers that update each parameter independently

_CROSSINGS = "_gluon_gc_crossings"  # the name of a model's attribute: its CrossingAveragers


class _Crossing(Averaging):
    """Added to the class of an optimizer whose updates are applied late."""

    _averager: CrossingAverager

    @property
    def compression_state(self) -> CompressionState:
        self.finish()
        return self._averager.state

    def finish(self) -> None:
        """Wait until all updates of the last step are applied.

        The model's forward, `state_dict`, `parameters` and similar methods call this themselves.
        """
        self._averager.finish()

    def __reduce__(self) -> Tuple[Any, ...]:
        self.finish()
        return super().__reduce__()


class _Late:
    """Added to the class of a model, to update its parameters before they are read."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        _finish(self)
        return super().named_parameters(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        _finish(self)
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        _finish(self)
        return super().load_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        _finish(self)
        return super()._apply(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, except those that are being averaged."""
        crossings = vars(self).pop(_CROSSINGS)  # so that `parameters` does not wait
        try:
            super().zero_grad(set_to_none)
        finally:
            vars(self)[_CROSSINGS] = crossings

    def __reduce_ex__(self, protocol: int) -> Tuple[Any, ...]:
        """Make copies instances of the model's original class, which never waits."""
        _finish(self)
        make, arguments, *others = super().__reduce_ex__(protocol)
        kind = next(c for c in type(self).__mro__ if not issubclass(c, _Late))
        arguments = tuple(kind if argument is type(self) else argument for argument in arguments)
        if others and isinstance(others[0], dict):
            others[0] = {k: v for k, v in others[0].items() if k != _CROSSINGS}
        return (_new if make is copyreg.__newobj__ else make, arguments, *others)


def _new(kind: type, *arguments: Any) -> Any:
    """Like `copyreg.__newobj__`, but for any class."""
    return kind.__new__(kind, *arguments)


def CrossBarrier(
    model: Module,
    optimizer: Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Optimizer:
    """Make an optimizer average gradients during backward and the next forward.

    Training gives the same bits as with `DistributedOptimizer`.

    `step` sets all gradients to None and returns while they are being averaged. Each parameter is
    updated before the forward of the module that needs it. A forward without autograd waits for all
    updates, and so do the model's `state_dict`, `parameters`, `to`, and copies of the model. Call
    the optimizer's `finish` before you read parameters in another way. Call its `synchronize`
    before you read or change gradients.

    Parameters
    ----------
    model : Module
        Each forward must call the same submodules as the forward of the first step.
    optimizer : Optimizer
        An SGD, Adam or RMSprop. It is changed in place and returned; see `DistributedOptimizer`.
    named_parameters, compression, backward_passes_per_step
        See `DistributedOptimizer`.
    num_steps : int
        The total number of steps. The last step waits for its updates, because no forward follows.

    Raises
    ------
    ValueError, TypeError, KeyError
        An argument is wrong. Nothing was sent.
    RuntimeError
        The workers have different versions, settings or parameters.

    References
    ----------
    byteps.torch.cross_barrier.CrossBarrier (BytePS). Peng et al., A generic communication scheduler
    for distributed DNN training acceleration, SOSP 2019.
    """
    kind = kind_of(optimizer)
    if kind not in _KINDS:
        raise ValueError(
            f"CrossBarrier is for the optimizers SGD, Adam and RMSprop, got {kind.__name__}; "
            "DistributedOptimizer takes any optimizer"
        )
    if not isinstance(model, Module):
        raise TypeError(f"model must be a Module, got {type(model).__name__}")
    if not is_whole(num_steps) or num_steps < 1:
        raise ValueError(f"num_steps must be a whole number > 0, got {num_steps!r}")
    DistributedOptimizer(optimizer, named_parameters, compression, backward_passes_per_step)
    averager = optimizer._averager
    crossing = CrossingAverager(
        model, kind, int(num_steps), optimizer, averager.passes, averager.state
    )
    averager.state.gradients.when_stepping = crossing.before_step
    optimizer._averager = crossing
    optimizer.__class__ = type(kind.__name__, (_Crossing, kind), {})
    watch_steps(after=_take_gradients, optimizer=optimizer)
    optimizer.register_state_dict_pre_hook(_finish_optimizer)
    optimizer.register_load_state_dict_pre_hook(_finish_optimizer)
    if not isinstance(model, _Late):
        model.__class__ = type(type(model).__name__, (_Late, type(model)), _names(type(model)))
    vars(model).setdefault(_CROSSINGS, []).append(crossing)
    return optimizer


def _names(kind: type) -> Dict[str, str]:
    """Return the attributes that make a subclass print like this class."""
    return {"__module__": kind.__module__, "__qualname__": kind.__qualname__}


def _finish(model: Any) -> None:
    for crossing in vars(model).get(_CROSSINGS, ()):
        crossing.finish()


def _take_gradients(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(optimizer, _Crossing):
        optimizer._averager.take_gradients()


def _finish_optimizer(optimizer: Optimizer, *state_dict: Any) -> None:
    if isinstance(optimizer, _Crossing):
        optimizer.finish()
