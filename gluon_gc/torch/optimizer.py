"""DistributedOptimizer: BytePS's way to average gradients, without DistributedDataParallel."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Tuple, Union

import torch
from torch.optim import Optimizer

from .. import algorithms
from ..options import is_whole
from .algorithm import with_algorithm
from .averager import Averager, checked_passes
from .compression import Compression, params_of
from .copies import Distributed, kind_of
from .scaler import wait_before_unscaling
from .state import CompressionState


class Averaging(Distributed):
    """What a distributed optimizer has in addition; it is mixed into the optimizer's class."""

    _averager: Averager

    @property
    def compression_state(self) -> CompressionState:
        """What compression keeps: for its stats, epochs and checkpoints."""
        return self._averager.state

    def synchronize(self) -> None:
        """Wait until all gradients are averages; `step` does so by itself.

        A gradient that backward did not compute counts as zeros. If it has no gradient on any
        worker, the parameter has none afterwards.
        """
        self._averager.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within, `step` does not average."""
        self._averager.skips = True
        try:
            yield
        finally:
            self._averager.skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How often backward is called before `step`; see `DistributedOptimizer`."""
        self._averager.set_passes(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients. If `step` was not called since backward, that step is left out."""
        self._averager.drop()
        super().zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What GradScaler.step asks before it unscales gradients: they have to be averages then."""
        self._averager.synchronize()
        return getattr(super(), "_step_supports_amp_scaling", False)

    def contents(self) -> Dict[str, Any]:
        contents, momentum = super().contents(), self._averager.state.momentum
        if momentum is not None:
            groups = [{**group, **momentum.given} for group in contents["param_groups"]]
            contents = {**contents, "param_groups": groups}
        return contents


def DistributedOptimizer(
    optimizer: Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    staleness: int = 0,
    compression_params: Optional[Mapping[str, Any]] = None,
    algorithm: Union[None, str, Mapping[str, Any]] = None,
    **options: Any,
) -> Optimizer:
    """Make an optimizer average gradients over all workers: during backward, before it steps.

    Gradients are averages when backward returns, if it has computed those of all parameters;
    otherwise when `synchronize` or `step` returns. A copy of the optimizer, or an unpickled one,
    has to be made distributed anew before it can step. Every worker makes its optimizers, and calls
    their methods, in the same order.

    Parameters
    ----------
    optimizer : Optimizer
        It is changed, and returned: its class has the methods `synchronize`, `skip_synchronize` and
        `set_backward_passes_per_step` now, and the attribute `compression_state`.
    named_parameters : iterable of (str, Parameter), optional
        As `model.named_parameters()`, of all that the optimizer steps; by default they are
        numbered.
    compression : NoneCompressor, FP16Compressor or dict
        BytePS's ``Compression.none`` or ``Compression.fp16``, or `compression_params`.
    backward_passes_per_step : int
        How often backward is called before `step`. Their gradients are added up, and averaged over
        workers in the last of them.
    staleness : int
        By how many steps BytePS's gradients may be late. Here they are never late.
    compression_params : dict, optional
        As `gluon_gc.DistributedTrainer` takes it.
    algorithm : str or dict, optional
        What is averaged, and when: a name, or a dict of "name" and options; `gluon_gc.algorithms`
        has them. None: every gradient, in every step. With an algorithm, workers step with
        gradients of their own, and `step` makes the algorithm's rounds; all workers call it equally
        often. compression_params say how the rounds travel.
    **options
        overrides, process_group, on_nonfinite, grad_scaler: as `CompressionState` has them. A
        `grad_scaler` waits for averages before it unscales them. An algorithm takes the first two.

    Raises
    ------
    ValueError, TypeError, KeyError
        Wrong arguments, before anything is sent.
    RuntimeError
        Workers differ in version, settings or parameters.

    References
    ----------
    byteps.torch.DistributedOptimizer (BytePS).
    """
    if isinstance(optimizer, Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    stepped = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    named = list(named_parameters or ((f"parameter.{i}", p) for i, p in enumerate(stepped)))
    given = {parameter for _, parameter in named}
    missing = [tuple(parameter.shape) for parameter in stepped if parameter not in given]
    if missing:
        raise ValueError(
            f"named_parameters must have all that the optimizer steps, but those of shapes "
            f"{missing} are missing"
        )
    passes, kind = checked_passes(backward_passes_per_step), kind_of(optimizer)
    _require_staleness(staleness)
    params = params_of(compression, compression_params)
    chosen = algorithms.parse(algorithm)
    if chosen is not None:
        return with_algorithm(optimizer, named, chosen, params, **options)
    state = CompressionState(named, params, optimizer, **options)
    optimizer.__class__ = type(kind.__name__, (Averaging, kind), {})
    optimizer._averager = Averager(optimizer, passes, state)
    state.gradients.when_stepping = optimizer._averager.before_step
    if options.get("grad_scaler") is not None:
        wait_before_unscaling(options["grad_scaler"], optimizer)
    return optimizer


def _require_staleness(staleness: Any) -> None:
    if not is_whole(staleness) or staleness < 0:
        raise ValueError(f"staleness must be a whole number >= 0, got {staleness!r}")
