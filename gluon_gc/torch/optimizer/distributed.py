"""DistributedOptimizer: averages gradients like BytePS does, without DistributedDataParallel."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, ContextManager, Iterable, Iterator, Mapping, Optional, Tuple, Union

import torch
from torch.optim import Optimizer

from ... import algorithms
from ...options import is_whole
from ..algorithms.optimizer import with_algorithm
from ..compression import Compression, params_of
from ..gradients import single_averager
from ..gradients.optimizer_hooks import unwrapped
from ..gradients.scaler import wait_before_unscaling
from ..gradients.state import CompressionState
from .averager import Averager, checked_passes
from .copies import Distributed, kind_of, restore


class Averaging(Distributed):
    """The methods that DistributedOptimizer adds to the optimizer's class."""

    _averager: Averager

    @property
    def compression_state(self) -> CompressionState:
        """The state of the compression, for statistics, epochs and checkpoints."""
        return self._averager.state

    def synchronize(self) -> None:
        """Wait until all gradients are averaged. `step` calls this itself.

        If backward did not compute a gradient on this worker, it counts as zeros. If no worker has
        computed it, the parameter's `grad` is None afterwards.
        """
        self._averager.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context in which `step` does not average."""
        self._averager.skips = True
        try:
            yield
        finally:
            self._averager.skips = False

    def not_applied(self) -> ContextManager[None]:
        """Return a context for backward passes whose averages the optimizer does not apply.

        See `CompressionState.not_applied`.
        """
        return self._averager.state.not_applied()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes per `step`; see `DistributedOptimizer`."""
        self._averager.set_passes(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients. If backward has run since the last `step`, this skips that step."""
        self._averager.drop()
        super().zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Wait for the averages. GradScaler.step reads this attribute before it unscales them."""
        self._averager.synchronize()
        return False  # momentum is applied to unscaled averages, before the optimizer's step


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
    """Make an optimizer average gradients over all workers during backward.

    When backward returns, all gradients are averaged if it has computed one for every parameter.
    Otherwise `synchronize` or `step` averages the rest.

    All workers must create their optimizers in the same order, and call their methods in the same
    order. A copy of the optimizer, or an unpickled one, cannot step until it is passed to
    DistributedOptimizer again.

    Parameters
    ----------
    optimizer : Optimizer
        It is changed in place and returned. Its class gets the methods `synchronize`,
        `skip_synchronize` and `set_backward_passes_per_step`, and the attribute
        `compression_state`. If Accelerate or Lightning has wrapped it, the wrapper is returned. The
        methods and the attribute are then those of the wrapper's attribute `optimizer`.
    named_parameters : iterable of (str, Parameter), optional
        The result of `model.named_parameters()`. It must contain all parameters of the optimizer
        that need a gradient. Others are ignored, or an error with an algorithm. Default: parameters
        are named by their number.
    compression : NoneCompressor, FP16Compressor or dict
        BytePS's ``Compression.none`` or ``Compression.fp16``, or `compression_params`.
    backward_passes_per_step : int
        The number of backward passes per `step`. Their gradients are added up, and the last pass
        averages the sum over workers.
    staleness : int
        Accepted, without effect. In BytePS, gradients may be late by this number of steps; here
        they are never late.
    compression_params : dict, optional
        The compressor and its options; see `CompressionState`.
    algorithm : str or dict, optional
        An algorithm that decides which vectors are averaged, and when: its name, or a dict with
        "name" and options. `gluon_gc.algorithms` lists them. None: every gradient is averaged in
        every step. With an algorithm, backward averages nothing, and `step` runs the algorithm's
        rounds, which compression_params compress. All workers must call `step` equally often. With
        the compressor "auto", local_steps may choose its option "every" in step 7, and powersgd
        chooses in the first step whether gradients are compressed.
    **options
        overrides, process_group, on_nonfinite and grad_scaler; see `CompressionState`. A
        `grad_scaler` waits for the averages before it unscales them. With an algorithm, only
        overrides, process_group and, if it averages gradients, on_nonfinite="skip" are allowed.

    Raises
    ------
    ValueError, TypeError, KeyError
        An argument is wrong. Nothing was sent.
    RuntimeError
        The workers have different versions, settings or parameters.

    References
    ----------
    byteps.torch.DistributedOptimizer (BytePS).
    """
    given, optimizer = optimizer, unwrapped(optimizer)
    if isinstance(optimizer, Distributed):
        if not optimizer.compression_state.is_closed:
            raise ValueError(
                "the optimizer is a DistributedOptimizer already: before you make it one again, "
                "call its compression_state.close()"
            )
        restore(optimizer)
    stepped = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    named = list(named_parameters or ((f"parameter.{i}", p) for i, p in enumerate(stepped)))
    known = {parameter for _, parameter in named}
    missing = [tuple(parameter.shape) for parameter in stepped if parameter not in known]
    if missing:
        raise ValueError(
            f"named_parameters must have all parameters of the optimizer, but parameters of shapes "
            f"{missing} are missing"
        )
    passes, kind = checked_passes(backward_passes_per_step), kind_of(optimizer)
    _require_staleness(staleness)
    params = params_of(compression, compression_params)
    chosen = algorithms.parse(algorithm)
    if chosen is not None:
        _require_own_step(given, chosen.name)
        option_given = algorithms.gives(algorithm, chosen.chosen_option)
        with_algorithm(optimizer, named, chosen, option_given, params, **options)
        return given
    stepped = set(stepped)
    own = [(name, p) for name, p in named if p in stepped or not p.requires_grad]
    single_averager.require_single(stepped, single_averager.states)
    state = CompressionState(own, params, optimizer, **options)
    single_averager.distributed.add(state)
    state.needs_no_hook()
    optimizer.__class__ = type(kind.__name__, (Averaging, kind), {})
    optimizer._averager = Averager(optimizer, passes, state)
    state.gradients.when_stepping = optimizer._averager.before_step
    if options.get("grad_scaler") is not None:
        wait_before_unscaling(options["grad_scaler"], optimizer)
    return given


def _require_own_step(optimizer: Optimizer, algorithm: str) -> None:
    """Raise ValueError if Accelerate's wrapper keeps the `step` of the class that is replaced."""
    if unwrapped(optimizer) is not optimizer and getattr(optimizer, "scaler", None) is not None:
        raise ValueError(
            f"Accelerate has wrapped the optimizer for float16 before algorithm {algorithm} "
            "changes its step: use bfloat16, or call DistributedOptimizer before "
            "accelerator.prepare"
        )


def _require_staleness(staleness: Any) -> None:
    if not is_whole(staleness) or staleness < 0:
        raise ValueError(f"staleness must be a whole number >= 0, got {staleness!r}")
