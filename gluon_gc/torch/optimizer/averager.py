"""Averager: averages gradients while backward computes them, in the same order on all workers."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence

import torch
from torch.autograd import Variable
from torch.futures import Future
from torch.optim import Optimizer

from ...options import is_whole
from ..gradients.optimizer_hooks import require_averaged
from ..gradients.state import CompressionState

_BUCKET_BYTES = 4 * 2**20  # the approximate size of a bucket of gradients

_numbers = itertools.count()
averagers: weakref.WeakValueDictionary[int, Averager] = weakref.WeakValueDictionary()
"""The averagers of this process, by a number that is the same on all workers."""

Bucket = Sequence[torch.nn.Parameter]
"""One parameter with a sparse gradient, or several with dense gradients."""


class UnderWay(NamedTuple):
    """A bucket whose gradients are being averaged.

    Parameters
    ----------
    future : Future
    bucket : Bucket
    values : dict of Parameter to Tensor
        The dense tensors that become the averages; empty for a sparse gradient.
    """

    future: Future[Any]
    bucket: Bucket
    values: Mapping[torch.Tensor, torch.Tensor]


class _Made(NamedTuple):
    """A gradient as backward left it."""

    gradient: torch.Tensor
    version: int


class Averager:
    """Averages the gradients of an optimizer's parameters.

    When backward returns, all gradients are averaged if it has computed one for every parameter.
    Otherwise the optimizer's step averages the rest.

    Parameters
    ----------
    optimizer : Optimizer
    passes : int
        The number of backward passes per step.
    state : CompressionState
        The state for all parameters of the optimizer.

    Attributes
    ----------
    skips : bool
        Whether the optimizer steps without averaging.
    """

    def __init__(self, optimizer: Optimizer, passes: int, state: CompressionState) -> None:
        self.set_passes(passes)
        self.skips, self.state, self._optimizer = False, state, optimizer
        self._buckets: Optional[List[Bucket]] = None  # unknown until the first gradients exist
        self._averages: Dict[torch.Tensor, weakref.ref] = {}
        self._begin()
        state.gradients.when_made = self._ready
        # A script may compile a whole step, but torch.compile cannot trace these methods.
        untraceable = self.drop, self.synchronize, self._finish_backward
        self.drop, self.synchronize, self._finish_backward = map(
            torch.compiler.disable, untraceable
        )
        averagers[next(_numbers)] = self

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes per step."""
        self.passes = checked_passes(passes)

    def _begin(self) -> None:
        """Prepare for the gradients of a new step."""
        self._passes: Dict[torch.Tensor, int] = dict.fromkeys(self.state.parameters.values(), 0)
        self._left = len(self._passes)  # the parameters that wait for further backward passes
        self._made: Dict[torch.Tensor, _Made] = {}
        self._under_way: List[UnderWay] = []
        self._averaged = False

    # Backward

    def _ready(self, parameter: torch.Tensor) -> None:
        """Handle a gradient that backward has added to."""
        if self._dropped(parameter):
            self.drop()
        name = self.state.name_of(parameter)
        if parameter.grad is None:
            raise RuntimeError(
                f"a hook has set the gradient of parameter {name} to None before it was averaged"
            )
        if self._averaged or self._passes[parameter] == self.passes:
            raise RuntimeError(
                f"backward computed the gradient of parameter {name} more than "
                f"backward_passes_per_step ({self.passes}) times before step(); to skip a step, "
                "call the optimizer's zero_grad()"
            )
        self._made[parameter] = _Made(parameter.grad, parameter.grad._version)
        self._passes[parameter] += 1
        self._left -= self._passes[parameter] == self.passes
        if self._buckets is not None:
            self._hand_over()
        if not self._left:
            Variable._execution_engine.queue_callback(self._finish_backward)

    def _finish_backward(self) -> None:
        """Called just before backward returns, if it has computed all gradients."""
        self.synchronize()

    def _dropped(self, parameter: torch.Tensor) -> bool:
        """Return whether a gradient of backward was replaced or set to None without a step."""
        if self._averaged:
            return self._averages[parameter]() is not parameter.grad
        return parameter in self._made and self._made[parameter].gradient is not parameter.grad

    def _hand_over(self, all_of_them: bool = False) -> None:
        """Start to average the complete buckets, in their order, up to the first incomplete one."""
        for bucket in self._buckets[len(self._under_way) :]:
            if not all_of_them and any(self._passes[p] < self.passes for p in bucket):
                return
            begins = not self._under_way
            average = self._sparse if bucket[0] in self._of_sparse else self._dense
            self._under_way.append(average(bucket, begins))

    def _dense(self, bucket: Bucket, begins: bool) -> UnderWay:
        values = {p: _as_dense(p) for p in bucket}
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
        require_averaged(self._optimizer, self._passes)
        self._require_unchanged()
        if self._buckets is None:
            self._find_buckets()
        self._hand_over(all_of_them=True)
        under_way = self._under_way
        self._begin()
        for part in under_way:
            self._deliver(part)
        self._averages = {p: _reference(p.grad) for p in self._passes}
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
        under_way = self._under_way
        self._begin()
        for part in under_way:
            part.future.wait()

    def leave(self) -> None:
        """Finish the exchanges under way. A step that has begun is skipped."""
        self.drop()

    def before_step(self) -> None:
        """Average the gradients. The optimizer calls this before each step."""
        if not self.skips:
            self.synchronize()
        self._begin()

    def _require_unchanged(self) -> None:
        """Raise a RuntimeError if a gradient was changed after backward computed it."""
        for parameter, (gradient, version) in self._made.items():
            if parameter.grad is not gradient or gradient._version != version:
                raise RuntimeError(
                    f"the gradient of parameter {self.state.name_of(parameter)} was changed before "
                    "it was averaged: call the optimizer's synchronize() before you change "
                    "gradients"
                )


def checked_passes(passes: Any) -> int:
    """Return backward_passes_per_step as an int, or raise ValueError if it is wrong."""
    if not is_whole(passes) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be a whole number > 0, got {passes!r}")
    return int(passes)


def _buckets(
    parameters: Mapping[str, torch.nn.Parameter], of_sparse: Collection[torch.Tensor]
) -> List[Bucket]:
    """Group neighbouring parameters of one device, the last ones first, as in backward."""
    buckets: List[List[torch.nn.Parameter]] = []
    size, last = _BUCKET_BYTES, None
    for parameter in reversed(list(parameters.values())):
        alone = parameter in of_sparse
        if alone or size >= _BUCKET_BYTES or parameter.device != last:
            buckets.append([])
            size, last = 0, parameter.device
        buckets[-1].append(parameter)
        size += _BUCKET_BYTES if alone else parameter.numel() * parameter.itemsize
    return buckets


def _as_dense(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient as a dense tensor: itself if dense, zeros if None."""
    if parameter.grad is None:
        return torch.zeros_like(parameter, requires_grad=False)
    return parameter.grad.to_dense()


def _reference(tensor: Optional[torch.Tensor]) -> Callable[[], Optional[torch.Tensor]]:
    """Return a function that returns the tensor while it exists, without keeping it alive."""
    return (lambda: None) if tensor is None else weakref.ref(tensor)
