"""Hands gradients over as backward makes them, in an order that all workers share."""

from __future__ import annotations

import itertools
import weakref
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

import torch
from torch.autograd import Variable
from torch.futures import Future
from torch.optim import Optimizer

from ..options import is_whole
from .optimizer_hooks import require_averaged
from .state import CompressionState

_BUCKET_BYTES = 4 * 2**20  # of gradients that are handed over together, about

_numbers = itertools.count()
averagers: weakref.WeakValueDictionary[int, Averager] = weakref.WeakValueDictionary()
"""All of this process, in the order in which they were made, which is the same on all workers."""

Bucket = Sequence[torch.nn.Parameter]
"""One parameter whose gradient is sparse, or some whose gradients are dense."""


class UnderWay(NamedTuple):
    """Gradients that are being averaged.

    Parameters
    ----------
    future : Future
    bucket : Bucket
    values : dict
        By parameter the dense tensor that becomes the average.
    """

    future: Future[Any]
    bucket: Bucket
    values: Mapping[torch.Tensor, torch.Tensor]


class _Made(NamedTuple):
    """A gradient as backward has left it."""

    gradient: torch.Tensor
    version: int


class Averager:
    """Averages the gradients of an optimizer's parameters.

    Averages are there when backward returns, if it has made the gradients of all parameters; or
    else when the optimizer steps.

    Parameters
    ----------
    optimizer : Optimizer
    passes : int
        How often backward is called in a step.
    state : CompressionState
        Of all parameters that the optimizer steps.

    Attributes
    ----------
    skips : bool
        Whether steps do not average.
    """

    def __init__(self, optimizer: Optimizer, passes: int, state: CompressionState) -> None:
        self.set_passes(passes)
        self.skips, self.state, self._optimizer = False, state, optimizer
        self._buckets: Optional[List[Bucket]] = None  # until it is known which are sparse
        self._averages: Dict[torch.Tensor, weakref.ref] = {}
        self._begin()
        state.gradients.when_made = self._ready
        averagers[next(_numbers)] = self

    def set_passes(self, passes: int) -> None:
        """Expect so many backwards a step from now on."""
        self.passes = checked_passes(passes)

    def _begin(self) -> None:
        """Expect the gradients of a new step."""
        self._passes: Dict[torch.Tensor, int] = dict.fromkeys(self.state.parameters.values(), 0)
        self._left = len(self._passes)  # parameters that backward has not come to often enough
        self._made: Dict[torch.Tensor, _Made] = {}
        self._under_way: List[UnderWay] = []
        self._averaged = False

    # Backward

    def _ready(self, parameter: torch.Tensor) -> None:
        """Note that backward has added to a gradient."""
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
                f"backward_passes_per_step ({self.passes}) times before step(); the optimizer's "
                "zero_grad() leaves a step out"
            )
        self._made[parameter] = _Made(parameter.grad, parameter.grad._version)
        self._passes[parameter] += 1
        self._left -= self._passes[parameter] == self.passes
        if self._buckets is not None:
            self._hand_over()
        if not self._left:
            Variable._execution_engine.queue_callback(self._finish_backward)

    def _finish_backward(self) -> None:
        """Called when backward has made all gradients, just before it returns."""
        self.synchronize()

    def _dropped(self, parameter: torch.Tensor) -> bool:
        """Whether a gradient was set to None since backward has made it, without a step."""
        if self._averaged:
            return self._averages[parameter]() is not parameter.grad
        return parameter in self._made and self._made[parameter].gradient is not parameter.grad

    def _hand_over(self, all_of_them: bool = False) -> None:
        """Begin to average the buckets whose turn it is."""
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
        """Wait until all gradients are averages, unless they are."""
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

    def _find_buckets(self) -> None:
        """Ask all workers which gradients are sparse."""
        parameters = self.state.parameters
        own = [n for n, p in parameters.items() if p.grad is not None and p.grad.is_sparse]
        everybody = self.state.exchange.gather_objects(own, "begin the first step")
        self._of_sparse = {parameters[name] for names in everybody for name in names}
        self._buckets = _buckets(parameters, self._of_sparse)

    def _deliver(self, part: UnderWay) -> None:
        """Wait for averages, and give them to the parameters; unused ones have none."""
        result = part.future.wait()
        for parameter in part.bucket:
            if not part.values:
                parameter.grad = result
            elif self.state.name_of(parameter) not in result:
                parameter.grad = part.values[parameter]

    def drop(self) -> None:
        """Forget the gradients of this step, once those under way have been exchanged."""
        under_way = self._under_way
        self._begin()
        for part in under_way:
            part.future.wait()

    def leave(self) -> None:
        """Finish what is under way; a step that has begun is left out."""
        self.drop()

    def before_step(self) -> None:
        """What the optimizer's hook does."""
        if not self.skips:
            self.synchronize()
        self._begin()

    def _require_unchanged(self) -> None:
        """RuntimeError if a gradient was changed since backward has made it."""
        for parameter, (gradient, version) in self._made.items():
            if parameter.grad is not gradient or gradient._version != version:
                raise RuntimeError(
                    f"the gradient of parameter {self.state.name_of(parameter)} was changed before "
                    "it was averaged: call the optimizer's synchronize() before you change "
                    "gradients"
                )


def checked_passes(passes: Any) -> int:
    """backward_passes_per_step as an int; ValueError if it is wrong."""
    if not is_whole(passes) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be a whole number > 0, got {passes!r}")
    return int(passes)


def _buckets(
    parameters: Mapping[str, torch.nn.Parameter], of_sparse: Collection[torch.Tensor]
) -> List[Bucket]:
    """Neighbours on one device, the last ones first, as backward comes to them."""
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
    """A parameter's gradient, dense: the same memory if it is; zeros if there is none."""
    if parameter.grad is None:
        return torch.zeros_like(parameter, requires_grad=False)
    return parameter.grad.to_dense()


def _reference(tensor: Optional[torch.Tensor]) -> Callable[[], Optional[torch.Tensor]]:
    """What gives a tensor, without keeping it."""
    return (lambda: None) if tensor is None else weakref.ref(tensor)
