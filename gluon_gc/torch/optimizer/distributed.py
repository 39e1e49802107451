"""DistributedOptimizer: averages gradients like BytePS does, without DistributedDataParallel."""

from __future__ import annotations

import itertools
import weakref
from contextlib import contextmanager
from inspect import signature
from typing import (
    Any,
    Callable,
    Collection,
    ContextManager,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Sequence,
)

import torch
from torch.autograd import Variable
from torch.futures import Future
from torch.optim import Optimizer

from ... import algorithms, mailbox
from ...exchange import plan
from ...options import is_whole, require_arguments
from ..algorithms.optimizer import with_algorithm
from ..compression import Compression, params_of
from ..gradients.checks import add_state, require_no_ddp, require_single
from ..gradients.optimizer_hooks import require_all, require_averaged, stepped, unwrapped
from ..gradients.scaler import wait_before_unscaling
from ..gradients.settings import checked_passes, pairs
from ..gradients.state import CompressionState
from ..gradients.undo import is_nonzero
from .copies import Distributed, kind_of, restore

_BUCKET_BYTES = 4 * 2**20  # the approximate size of a bucket of gradients

_numbers = itertools.count()
averagers: weakref.WeakValueDictionary[int, Averager] = weakref.WeakValueDictionary()
"""The averagers of this process, by a number that is the same on all workers."""

Bucket = Sequence[torch.nn.Parameter]
"""One parameter with a sparse gradient, or several with dense gradients."""


class UnderWay(NamedTuple):
    future: Future[Any]
    bucket: Bucket
    # The dense tensors that become the averages; empty for a sparse gradient.
    values: Mapping[torch.Tensor, torch.Tensor]


class Averager:
    """Averages the gradients of an optimizer's parameters, in the same order on all workers.

    When backward returns, all gradients are averaged if it has computed one for every parameter.
    Otherwise the optimizer's step averages the rest. `passes` is the number of backward passes per
    step.
    """

    updates_late = False  # whether parameters are updated after the optimizer's step

    def __init__(self, optimizer: Optimizer, passes: int, state: CompressionState) -> None:
        self.set_passes(passes)
        self.state, self._optimizer = state, optimizer
        self.skips = False  # whether the optimizer steps without averaging
        self._buckets: list[Bucket] | None = None  # unknown until the first gradients exist
        self._averages: dict[torch.Tensor, Callable[[], Any]] = {}  # weak references to them
        self._task = -1  # the last backward pass
        self._begin()
        state.gradients.follow(self)
        # A script may compile a whole step, but torch.compile cannot trace these methods.
        untraceable = self.drop, self.synchronize, self._finish_backward
        self.drop, self.synchronize, self._finish_backward = map(
            torch.compiler.disable, untraceable
        )
        averagers[next(_numbers)] = self

    def set_passes(self, passes: int) -> None:
        self.passes = checked_passes(passes)

    def _begin(self) -> None:
        self._passes: dict[torch.Tensor, int] = dict.fromkeys(self.state.parameters.values(), 0)
        self._left = len(self._passes)  # the parameters that wait for further backward passes
        # The gradients as backward left them, with their versions.
        self._made: dict[torch.Tensor, tuple[torch.Tensor, int]] = {}
        self._under_way: list[UnderWay] = []
        self._averaged = False

    # Backward

    def ready(self, parameter: torch.Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if self._task != task and self._has_dropped(parameter):
            self.drop()
        self._task = task
        name = self.state.name_of(parameter)
        if parameter.grad is None:
            raise RuntimeError(
                f"a hook has set the gradient of parameter {name} to None before it was averaged"
            )
        if self._averaged or self._passes[parameter] == self.passes:
            raise RuntimeError(
                f"backward computed the gradient of parameter {name} more than "
                f"backward_passes_per_step ({self.passes}) times before step(); to skip a step, "
                "call the optimizer's zero_grad(); if activation checkpointing runs a layer twice "
                "in one pass, use checkpoint(..., use_reentrant=False)"
            )
        self._made[parameter] = parameter.grad, parameter.grad._version
        self._passes[parameter] += 1
        self._left -= self._passes[parameter] == self.passes
        if self._buckets is not None:
            self._hand_over()
        if not self._left:
            Variable._execution_engine.queue_callback(self._finish_backward)

    def _finish_backward(self) -> None:
        """Called just before backward returns, if it has computed all gradients."""
        self.synchronize()

    def _has_dropped(self, first: torch.Tensor) -> bool:
        """Return whether gradients were set to zero or to None without a step.

        `first` is the first parameter whose gradient this backward pass has computed.
        """
        if self._averaged:
            return self._averages[first]() is not first.grad
        replaced = [p for p, (gradient, _) in self._made.items() if p.grad is not gradient]
        # If others have new values, `synchronize` refuses them.
        return bool(replaced) and all(p is first or not is_nonzero(p.grad) for p in replaced)

    def _hand_over(self, all_of_them: bool = False) -> None:
        """Start to average the complete buckets, in their order, up to the first incomplete one."""
        for bucket in self._buckets[len(self._under_way) :]:
            if not all_of_them and any(self._passes[p] < self.passes for p in bucket):
                return
            begins = not self._under_way
            average = self._sparse if bucket[0] in self._of_sparse else self._dense
            self._under_way.append(average(bucket, begins))

    def _dense(self, bucket: Bucket, begins: bool) -> UnderWay:
        values = {
            p: torch.zeros_like(p, requires_grad=False) if p.grad is None else p.grad.to_dense()
            for p in bucket
        }
        named = {self.state.name_of(parameter): tensor for parameter, tensor in values.items()}
        absent = {self.state.name_of(p) for p in bucket if p.grad is None}
        return UnderWay(self.state.average(named, begins, absent), bucket, values)

    def _sparse(self, bucket: Bucket, begins: bool) -> UnderWay:
        (parameter,) = bucket
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse:
            gradient = gradient.to_sparse()
        future = self.state.average_sparse(self.state.name_of(parameter), gradient, begins)
        return UnderWay(future, bucket, {})

    # Afterwards

    def synchronize(self) -> None:
        """Wait until all gradients are averaged."""
        if self._averaged:
            return
        if self._buckets is None:
            require_no_ddp(self._passes)
        require_averaged(self._optimizer, self._passes)
        self._require_unchanged()
        if self._buckets is None:
            self._find_buckets()
        self._hand_over(all_of_them=True)
        under_way = self._under_way
        self._begin()
        for part in under_way:
            self._deliver(part)
        self._averages = {
            p: (lambda: None) if p.grad is None else weakref.ref(p.grad) for p in self._passes
        }
        self._averaged = True
        self.state.gradients.undo.delivered()

    def _find_buckets(self) -> None:
        """Learn from all workers which gradients are sparse."""
        parameters = self.state.parameters
        own = [n for n, p in parameters.items() if p.grad is not None and p.grad.is_sparse]
        sparse_names = self.state.exchange.gather_objects(own, "begin the first step")
        self._of_sparse = {parameters[name] for names in sparse_names for name in names}
        self._buckets = _buckets(parameters, self._of_sparse)

    def _deliver(self, part: UnderWay) -> None:
        """Wait for the averages of a bucket and give them to the parameters.

        A parameter without a gradient on any worker gets none.
        """
        result = part.future.wait()
        for parameter in part.bucket:
            if not part.values:
                parameter.grad = result
            elif self.state.name_of(parameter) not in result:
                parameter.grad = part.values[parameter]

    def drop(self) -> None:
        """Discard the gradients of this step, after the exchanges under way have ended."""
        if self._under_way:
            self.state.gradients.pending.wait()
        replaced = [
            self.state.name_of(parameter)
            for part in self._under_way
            for parameter in part.bucket
            if parameter.grad is not part.values.get(parameter)
        ]
        self.state.gradients.undo.note_lost(replaced)
        under_way = self._under_way
        self._begin()
        _wait(under_way)

    def leave(self) -> None:
        """Finish the exchanges under way. A step that has begun is skipped."""
        self.drop()

    def finish(self) -> None:
        """Wait for the exchanges that a backward pass has started."""
        _wait(self._under_way)

    def before_step(self) -> None:
        """Average the gradients. The optimizer calls this before each step."""
        if not self.skips:
            self.synchronize()
        self._begin()

    def _require_unchanged(self) -> None:
        for parameter, (gradient, version) in self._made.items():
            if parameter.grad is not gradient or gradient._version != version:
                raise RuntimeError(
                    f"the gradient of parameter {self.state.name_of(parameter)} was changed before "
                    "it was averaged: call the optimizer's synchronize() before you change "
                    "gradients"
                )


def _wait(under_way: Iterable[UnderWay]) -> None:
    for part in under_way:
        part.future.wait()


def _buckets(
    parameters: Mapping[str, torch.nn.Parameter], of_sparse: Collection[torch.Tensor]
) -> list[Bucket]:
    """Group parameters of one device, the last ones first, as in backward."""
    return plan.batches(
        reversed(list(parameters.values())),
        lambda parameter: parameter.numel() * parameter.itemsize,
        lambda parameter: None if parameter in of_sparse else parameter.device,
        enough=_BUCKET_BYTES,
    )


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
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    staleness: int = 0,
    compression_params: Mapping[str, Any] | None = None,
    algorithm: None | str | Mapping[str, Any] = None,
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
        overrides, process_group, inner_group, on_nonfinite and grad_scaler; see `CompressionState`.
        A `grad_scaler` waits for the averages before it unscales them. With an algorithm, only
        overrides, process_group, inner_group and, if it averages gradients, on_nonfinite="skip" are
        allowed.

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
    known = [*signature(DistributedOptimizer).parameters, *signature(CompressionState).parameters]
    require_arguments(options, known, "DistributedOptimizer")
    given, optimizer = optimizer, unwrapped(optimizer)
    named = checked_parameters(optimizer, named_parameters)
    passes = checked_passes(backward_passes_per_step)
    if not is_whole(staleness) or staleness < 0:
        raise ValueError(f"staleness must be a whole number >= 0, got {staleness!r}")
    params = params_of(compression, compression_params)
    chosen = algorithms.parse(algorithm)
    mailbox.require_algorithm(chosen)
    if chosen is None:
        average_gradients(optimizer, named, params, passes, **options)
    else:
        _require_own_step(given, chosen.name)
        option_given = algorithms.gives(algorithm, chosen.chosen_option)
        with_algorithm(optimizer, named, chosen, option_given, params, **options)
    return given


def checked_parameters(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> list[tuple[str, torch.nn.Parameter]]:
    """Return named_parameters, or raise ValueError unless they fit a new DistributedOptimizer.

    An optimizer that was one, and is closed, gets the class back that it had before.
    """
    if isinstance(optimizer, Distributed):
        if not optimizer.compression_state.is_closed:
            raise ValueError(
                "the optimizer is a DistributedOptimizer already: before you make it one again, "
                "call its compression_state.close()"
            )
        restore(optimizer)
    unnamed = ((f"parameter.{i}", p) for i, p in enumerate(stepped(optimizer)))
    named = list(pairs(named_parameters or unnamed))
    require_all(optimizer, {parameter for _, parameter in named})
    return named


def average_gradients(
    optimizer: Optimizer,
    named: Iterable[tuple[str, torch.nn.Parameter]],
    params: Mapping[str, Any] | None,
    passes: int,
    make_averager: Callable[[Optimizer, int, CompressionState], Averager] = Averager,
    added: type = Averaging,
    **options: Any,
) -> None:
    """Give an optimizer an averager, and the methods of the class `added`."""
    averaged, kind = set(stepped(optimizer)), kind_of(optimizer)
    own = [(name, p) for name, p in named if p in averaged or not p.requires_grad]
    require_single(averaged, distributed=True)
    state = CompressionState(own, params, optimizer, **options)
    add_state(state, distributed=True)
    state.needs_no_hook()
    optimizer.__class__ = type(kind.__name__, (added, kind), {})
    optimizer._averager = make_averager(optimizer, passes, state)
    if options.get("grad_scaler") is not None:
        wait_before_unscaling(options["grad_scaler"], optimizer)


def _require_own_step(optimizer: Optimizer, algorithm: str) -> None:
    """Raise ValueError if Accelerate's wrapper keeps the `step` of the class that is replaced."""
    if unwrapped(optimizer) is not optimizer and getattr(optimizer, "scaler", None) is not None:
        raise ValueError(
            f"Accelerate has wrapped the optimizer for float16 before algorithm {algorithm} "
            "changes its step: use bfloat16, or call DistributedOptimizer before "
            "accelerator.prepare"
        )
