"""CrossBarrier: averaging continues during the next forward.

The names are those of byteps.torch.cross_barrier.

    import gluon_gc.torch.cross_barrier as bps
"""

from __future__ import annotations

import copyreg
import time
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from typing import (
    Any,
    Callable,
    Collection,
    Iterable,
    Iterator,
    NamedTuple,
    Sequence,
    TypeVar,
)

import torch
from torch.futures import Future
from torch.nn import Module
from torch.optim import Optimizer

from ..options import is_whole
from .byteps.broadcasts import broadcast_optimizer_state, broadcast_parameters
from .byteps.push_pull import byteps_push_pull, poll, synchronize
from .byteps.runtime import init, local_rank, local_size, rank, shutdown, size
from .compression import Compression, params_of
from .gradients.optimizer_hooks import (
    let_step_call_hooks,
    param_groups,
    require_averaged,
    without_gradients,
)
from .gradients.optimizers import KNOWN
from .gradients.settings import checked_passes
from .gradients.state import CompressionState
from .optimizer.copies import kind_of
from .optimizer.distributed import (
    Averager,
    Averaging,
    Bucket,
    UnderWay,
    average_gradients,
    checked_parameters,
)
from .transport import gpu

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

_CROSSINGS = "_gluon_gc_crossings"  # the name of a model's attribute: its averagers
_MEASURED = 4  # steps that are measured before the buckets are reordered

_Item = TypeVar("_Item")


class _Crossing(Averaging):
    """Added to the class of an optimizer whose updates are applied late."""

    _averager: _CrossingAverager

    @property
    def compression_state(self) -> CompressionState:
        self.finish()
        return self._averager.state

    def finish(self) -> None:
        """Wait until all updates of the last step are applied.

        The model's forward, `state_dict`, `parameters` and similar methods call this themselves.
        """
        self._averager.finish()

    def __reduce__(self) -> tuple[Any, ...]:
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

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        """Make copies instances of the model's original class, which never waits."""
        _finish(self)
        make, arguments, *others = super().__reduce_ex__(protocol)
        kind = next(c for c in type(self).__mro__ if not issubclass(c, _Late))
        arguments = tuple(kind if argument is type(self) else argument for argument in arguments)
        if others and isinstance(others[0], dict):
            others[0] = {k: v for k, v in others[0].items() if k != _CROSSINGS}
        return (_new if make is copyreg.__newobj__ else make, arguments, *others)


def _new(kind: type, *arguments: Any) -> Any:
    return kind.__new__(kind, *arguments)


def CrossBarrier(
    model: Module,
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
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
    if kind not in [known.kind for known in KNOWN if known.is_separable]:
        raise ValueError(
            f"CrossBarrier is for the optimizers SGD, Adam and RMSprop, got {kind.__name__}; "
            "DistributedOptimizer takes any optimizer"
        )
    if not isinstance(model, Module):
        raise TypeError(f"model must be a Module, got {type(model).__name__}")
    if not is_whole(num_steps) or num_steps < 1:
        raise ValueError(f"num_steps must be a whole number > 0, got {num_steps!r}")
    named = checked_parameters(optimizer, named_parameters)
    passes = checked_passes(backward_passes_per_step)
    make_averager = partial(_CrossingAverager, model, kind, int(num_steps))
    average_gradients(optimizer, named, params_of(compression), passes, make_averager, _Crossing)
    let_step_call_hooks(optimizer)
    optimizer.register_step_post_hook(_take_gradients)
    optimizer.register_state_dict_pre_hook(_finish_optimizer)
    optimizer.register_load_state_dict_pre_hook(_finish_optimizer)
    if not isinstance(model, _Late):
        kind = type(model)
        printed_as = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        model.__class__ = type(kind.__name__, (_Late, kind), printed_as)
    vars(model).setdefault(_CROSSINGS, []).append(optimizer._averager)
    return optimizer


def _finish(model: Any) -> None:
    for crossing in vars(model).get(_CROSSINGS, ()):
        crossing.finish()


def _take_gradients(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(optimizer, _Crossing):
        optimizer._averager.take_gradients()


def _finish_optimizer(optimizer: Optimizer, *state_dict: Any) -> None:
    if isinstance(optimizer, _Crossing):
        optimizer.finish()


class _Update(NamedTuple):
    under_way: UnderWay  # the averages of their gradients
    groups: list[dict[str, Any]]  # the optimizer's, at the time of its step


class _CrossingAverager(Averager):
    """Averages the gradients of an optimizer's parameters, and applies its updates late.

    Each parameter is updated just before the forward that needs it. `kind` is the optimizer's
    class, and the last of `num_steps` steps waits for its updates.
    """

    updates_late = True

    def __init__(
        self,
        model: Module,
        kind: type[Optimizer],
        num_steps: int,
        optimizer: Optimizer,
        passes: int,
        state: CompressionState,
    ) -> None:
        self._kind, self._left_steps = kind, num_steps
        self._updates: dict[torch.Tensor, _Update] = {}  # pending ones, by parameter
        self._late: Collection[torch.Tensor] = ()  # parameters that were only updated in backward
        self._hooks = _ForwardHooks(model, self._enter)
        self._overlap, self._reordered = Overlap(), False
        super().__init__(optimizer, passes, state)
        state.gradients.weight_check.leave()  # workers may apply their last updates at other times

    # Backward

    def _hand_over(self, all_of_them: bool = False) -> None:
        first = not self._under_way
        if first and not self._reordered and self._overlap.begun == _MEASURED:
            self._reorder()
        super()._hand_over(all_of_them)
        if first and self._under_way:
            self._overlap.begin()

    def _dense(self, bucket: Bucket, begins: bool) -> UnderWay:
        under_way = super()._dense(bucket, begins)
        self._overlap.follow(under_way.future)
        return under_way

    def _reorder(self) -> None:
        """Put the buckets whose averaging backward does not hide in the order of forward.

        On a GPU, all buckets keep their order: there, backward still runs when this thread has
        returned from it, so the measurement does not show what backward hides.
        """
        on_host = all(gpu.in_host_memory(p.device) for p in self.state.parameters.values())
        own = self._overlap.share() if on_host else 1.0
        shares = self.state.exchange.gather_objects(own, "begin a step")
        share = max((measured for measured in shares if measured is not None), default=1.0)
        sizes = [sum(p.numel() * p.itemsize for p in bucket) for bucket in self._buckets]
        self._buckets, self._reordered = reordered(self._buckets, sizes, share), True

    def ready(self, parameter: torch.Tensor) -> None:
        if self._updates:
            self._late = set(self._updates)
            self.finish()
        if parameter in self._late:
            raise RuntimeError(
                f"parameter {self.state.name_of(parameter)} was used before its update was "
                "applied: CrossBarrier applies it before the module's forward that used the "
                "parameter in the first step; use DistributedOptimizer instead"
            )
        super().ready(parameter)

    def _finish_backward(self) -> None:
        if self._buckets is None:  # only the first step, which waits
            self.synchronize()
        else:
            self._overlap.backward_returns()

    def leave(self) -> None:
        self.finish()
        super().leave()

    def synchronize(self) -> None:
        self.finish()
        super().synchronize()

    # Steps

    def before_step(self) -> None:
        """Take the gradients away, so that the optimizer steps nothing.

        Gradients that are averages already stay, and the optimizer steps as usual.
        """
        self._left_steps -= 1
        if self._averaged or self._buckets is None:
            super().before_step()
        else:
            self._leave_under_way()
        self._hooks.learn()
        if self._left_steps <= 0:
            self.finish()

    def _leave_under_way(self) -> None:
        require_averaged(self._optimizer, self._passes)
        self._require_unchanged()
        self._hand_over(all_of_them=True)
        groups = [  # a learning rate may be a tensor
            {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
            for group in param_groups(self._optimizer)
        ]
        for under_way in self._under_way:
            self._updates.update(dict.fromkeys(under_way.bucket, _Update(under_way, groups)))
        self.take_gradients()
        self._begin()
        self._finish(self._updates.keys() - self._hooks.reported)

    def take_gradients(self) -> None:
        for parameter in self.state.parameters.values():
            parameter.grad = None

    def _begin(self) -> None:
        super()._begin()
        self._late = ()

    def _enter(self, parameters: Iterable[torch.Tensor]) -> None:
        """Apply the updates that a module's forward needs, or all of them if autograd is off."""
        self._late = ()
        if self._updates:
            self._finish(parameters if torch.is_grad_enabled() else list(self._updates))

    def finish(self) -> None:
        """Wait for all pending averages, and apply their updates."""
        super().finish()
        self._finish(list(self._updates))

    def _finish(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            update = self._updates.get(parameter)
            if update is not None:
                for updated in update.under_way.bucket:
                    del self._updates[updated]
                with _alone(update.under_way.bucket):
                    self._apply(update)

    def _apply(self, update: _Update) -> None:
        self._deliver(update.under_way)
        bucket = update.under_way.bucket
        with self._as_it_was(update.groups):
            self.state.gradients.apply_momentum(
                self.state.name_of(parameter) for parameter in bucket
            )
        changed = {} if self.state.momentum is None else {"momentum": 0.0}
        members = set(bucket)
        groups = [
            {**group, **changed, "params": [p for p in group["params"] if p in members]}
            for group in update.groups
        ]
        stepper = self._kind.__new__(self._kind)
        stepper.__setstate__(
            {
                "defaults": self._optimizer.defaults,
                "state": self._optimizer.state,
                "param_groups": [group for group in groups if group["params"]],
            }
        )
        stepper.step()

    @contextmanager
    def _as_it_was(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        contents = vars(self._optimizer)
        current, contents["param_groups"] = contents["param_groups"], groups
        try:
            yield
        finally:
            contents["param_groups"] = current


@contextmanager
def _alone(bucket: Bucket) -> Iterator[None]:
    """Return a context without gradients of these parameters, autocast and inference mode."""
    autocast = torch.autocast(bucket[0].device.type, enabled=False)
    with torch.inference_mode(False), autocast, without_gradients(bucket):
        yield


class _ForwardHooks:
    """Forward pre-hooks of all modules of a model, which report the parameters that a module needs.

    A module needs its own parameters. Its forward may also use the parameters of submodules without
    calling them, as nn.MultiheadAttention does. The first forward shows which modules are called.
    The parameters of the other modules are needed by the nearest enclosing module that is called.
    """

    def __init__(self, model: Module, before_use: Callable[[Iterable[torch.Tensor]], None]) -> None:
        self._before_use = before_use
        self.reported: set[torch.Tensor] = set()  # parameters whose use is always reported
        self._called: set[Module] = set()
        self._needs: dict[Module, list[torch.Tensor]] | None = None  # unknown until `learn`
        self._around: dict[Module, list[Module]] = defaultdict(list)
        for module in model.modules():
            for child in module.children():
                self._around[child].append(module)
            module.register_forward_pre_hook(_ForwardHook(self), prepend=True)
        self._modules = list(model.modules())

    def learn(self) -> None:
        """After the first forward, determine which parameters each module needs."""
        if self._needs is not None or not self._called:
            return
        self._needs = defaultdict(list)
        for module in self._modules:
            parameters = list(module._parameters.values())
            callers = self._callers(module)
            for caller in {module, *callers}:
                self._needs[caller] += [p for p in parameters if p is not None]
            if callers:
                self.reported.update(parameters)

    def _callers(self, module: Module) -> set[Module]:
        """Return the nearest modules that were called: this one, or the modules around it."""
        if module in self._called:
            return {module}
        return {caller for outer in self._around[module] for caller in self._callers(outer)}

    def enter(self, module: Module) -> None:
        if self._needs is None:
            self._called.add(module)
        else:
            self._before_use(self._needs[module])


class _ForwardHook:
    """The hook of one module. A copy of a model gets hooks that do nothing."""

    def __init__(self, hooks: _ForwardHooks | None = None) -> None:
        self._hooks = hooks

    def __call__(self, module: Module, args: Any) -> None:
        if self._hooks is not None:
            self._hooks.enter(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return _ForwardHook, ()


class Overlap:
    """Measures the share of a step's averaging time that backward hides."""

    def __init__(self) -> None:
        self.begun = 0  # steps
        self._share: float | None = None  # of the last measured step
        self._start = self._returned = self._done = 0.0

    def begin(self) -> None:
        """Record that averaging begins in a new step. The previous step is complete."""
        if self._returned and self._done:  # backward has computed all gradients
            backward, whole = self._returned - self._start, self._done - self._start
            self._share = backward / max(backward, whole)
        self.begun += 1
        self._start, self._returned, self._done = time.perf_counter(), 0.0, 0.0

    def follow(self, average: Future) -> None:
        """Record when an average is complete."""

        def note(done: Future) -> None:
            self._done = time.perf_counter()

        average.add_done_callback(note)

    def backward_returns(self) -> None:
        self._returned = time.perf_counter()

    def share(self) -> float | None:
        """Return the share of the last measured step, or None if no step was measured."""
        return self._share


def reordered(items: Sequence[_Item], sizes: Sequence[int], share: float) -> list[_Item]:
    """Reverse the order of the last items; the first ones, with this share of the bytes, stay.

    Examples
    --------
    >>> reordered("dcba", [1, 1, 1, 1], 0.5)
    ['d', 'c', 'a', 'b']
    """
    kept, total = 0, 0
    while kept < len(items) and total < share * sum(sizes):
        total += sizes[kept]
        kept += 1
    return [*items[:kept], *reversed(items[kept:])]
