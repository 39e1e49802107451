"""Gradients with copies on several contexts, and the job that exchanges them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Mapping, Sequence

import mxnet as mx
from mxnet.ndarray import NDArray

from ... import kernels
from ...compression import CompressionParams
from ...exchange.plan import Slice


def legacy(arrays: Iterable[NDArray]) -> list[NDArray]:
    """The same memory as mx.nd arrays, which our operators need, with at least one axis."""
    arrays = [array.as_nd_ndarray() for array in arrays]
    return [array if array.shape else array.reshape((1,)) for array in arrays]


def params_for(array: NDArray, params: CompressionParams) -> CompressionParams:
    """The compression of a gradient on this array's device, given the requested compression."""
    return params.on_gpu if array.context.device_type == "gpu" else params


def _with_storage(array: NDArray, stype: str) -> NDArray:
    """The array in this storage type; without a copy if it has that type, unlike tostype."""
    return array if array.stype == stype else array.tostype(stype)


def _part(array: NDArray, piece: Slice) -> NDArray:
    return array.reshape(-1)[piece.begin : piece.end]


class Gradient:
    """The copies of one tensor, one for each context, and the arrays that receive the result.

    On the CPU, `own` is the sum of the copies, and `result` is the array for the result, both of
    the storage type `stype`. They share memory with copies and targets that may be overwritten. On
    a GPU, `sum_on` sums one slice, and `broadcast` copies the result of a slice to all targets.
    Only the gradient of a single CPU array may be used in several exchanges.
    """

    def __init__(
        self, arrays: Sequence[NDArray], targets: Sequence[NDArray], stype: str = "default"
    ) -> None:
        both = (*arrays, *targets)
        legacy_of = dict(zip(map(id, both), legacy(both)))  # the same array stays one object
        self._arrays = [legacy_of[id(array)] for array in arrays]
        self._targets = [legacy_of[id(target)] for target in targets]
        self._stype = stype
        self.contexts = tuple(array.context for array in self._arrays)
        self.from_gpus = all(context.device_type == "gpu" for context in self.contexts)
        self._on_cpu: tuple[NDArray, NDArray] | None = None
        self._wanted = False  # whether `result` was asked for
        self.unit = 1.0  # the result is divided by it before it is rounded, if it is float16
        (first, *others), (context, *_) = self._arrays, self.contexts
        in_place = any(target is first for target in self._targets)
        alone = not others and context.device_type == "cpu" and first.stype == stype
        self._only = arrays[0] if alone and in_place else None

    def is_of(self, arrays: Sequence[NDArray]) -> bool:
        """Whether this array is the only copy and the only target."""
        return len(arrays) == 1 and self._only is arrays[0]

    # On the CPU

    @property
    def own(self) -> NDArray:
        return (self._on_cpu or self._make())[0]

    @property
    def result(self) -> NDArray:
        """The array to write the result to, before `finish`."""
        self._wanted = True
        return (self._on_cpu or self._make())[1]

    def _make(self) -> tuple[NDArray, NDArray]:
        (first, *_), (context, *_) = self._arrays, self.contexts
        cpu = context if context.device_type == "cpu" else mx.cpu()
        local = [_with_storage(a, self._stype).as_in_context(cpu) for a in self._arrays]
        own = result = mx.nd.add_n(*local) if len(local) > 1 else local[0]
        if own is first and not any(target is first for target in self._targets):
            reusable = [target for target in self._targets if _same_layout(target, own)]
            result = reusable[0] if reusable else _empty(own, cpu)
        self._on_cpu = own, result
        return self._on_cpu

    def finish(self) -> None:
        """Copy the result to every target, if `result` was asked for."""
        if not self._wanted:
            return
        for target in self._targets:
            if target is not self.result:
                _with_storage(self.result, target.stype).copyto(target)

    def copied_result(self) -> NDArray:
        """A copy of what `finish` or `broadcast` has written to a target, times the unit."""
        result = self._targets[0]
        return result.copy() if self.unit == 1.0 else result.astype("float32") * self.unit

    # On a GPU

    @property
    def only(self) -> NDArray:
        (array,) = self._arrays
        return array

    @property
    def gpus(self) -> tuple[mx.Context, ...]:
        """The GPUs that hold the copies; none if a copy or target is elsewhere, or sparse."""
        if not self.from_gpus:
            return ()
        dense = all(array.stype == "default" for array in (*self._arrays, *self._targets))
        back = all(target.context.device_type == "gpu" for target in self._targets)
        return self.contexts if dense and back else ()

    def sum_on(self, gpu: mx.Context, piece: Slice) -> tuple[NDArray, int]:
        """An array on a GPU with the sum of a slice, and the slice's offset in it."""
        if self.contexts == (gpu,):
            return self._arrays[0], piece.begin
        first, *others = (_part(array, piece).as_in_context(gpu) for array in self._arrays)
        return sum(others, first), 0

    def room_on(self, gpu: mx.Context, piece: Slice) -> tuple[NDArray, int]:
        """An array on a GPU for the result of a slice, and the slice's offset, for `broadcast`."""
        for target in self._targets:
            if target.context == gpu:
                return target, piece.begin
        return mx.nd.empty(piece.size, gpu, self._arrays[0].dtype), 0

    def broadcast(self, array: NDArray, begin: int, piece: Slice) -> None:
        """Copy the result of a slice, which is in the array of `room_on`, to every target."""
        others = [target for target in self._targets if target is not array]
        if others:
            result = array.reshape(-1)[begin : begin + piece.size]
            for target in others:
                result.copyto(_part(target, piece))


def _empty(like: NDArray, context: mx.Context) -> NDArray:
    if like.stype == "default":
        return mx.nd.empty(like.shape, context, like.dtype)
    return mx.nd.sparse.zeros(like.stype, like.shape, context, like.dtype)


def _same_layout(a: NDArray, b: NDArray) -> bool:
    properties = [(x.stype, x.context, x.shape, x.dtype) for x in (a, b)]
    return properties[0] == properties[1]


def copy_first(arrays: Sequence[NDArray]) -> None:
    """Overwrite the copies of a tensor, one for each context, with the first one."""
    first, *others = legacy(arrays)
    for other in others:
        first.copyto(other)


def sum_over_contexts(arrays: Sequence[NDArray]) -> None:
    """Replace the copies of a dense gradient, one for each context, by their sum."""
    first, *others = legacy(arrays)
    if others:
        mx.nd.add_n(first, *(other.as_in_context(first.context) for other in others), out=first)
        copy_first(arrays)


def sums_of(gradients: Sequence[Gradient]) -> list[NDArray]:
    """This worker's own sums, for `clip_factor`: on one GPU if all are there, else on the CPU."""
    gpus = {gradient.gpus for gradient in gradients}
    on_one = len(gpus) == 1 and len(next(iter(gpus))) == 1
    if on_one and kernels.runs_on_gpu("clip"):
        return [gradient.only for gradient in gradients]
    return [gradient.own for gradient in gradients]


Gradients = Mapping[str, Gradient]
"""By tensor. A tensor of a chunk is missing if it takes no part in this step."""


@dataclass
class Job:
    """Gradients that one exchange replaces by their sums over all workers."""

    gradients: Gradients
    scale: float = 1.0  # multiplies this worker's gradients, before momentum and compression
    factor: NDArray | None = None  # another multiplier, for clipping; float64, shape (1,)
    # For each tensor, previous learning rate / current one, where that is not 1. All tensors of a
    # message have the same ratio.
    ratios: Mapping[str, float] = field(default_factory=dict)
    step: int = field(default=0, init=False)  # from 1, for the meters; `Exchange.start` sets it
