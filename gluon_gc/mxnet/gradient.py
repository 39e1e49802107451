"""Gradients of several contexts as one array, on the CPU or slice by slice on a GPU."""

from __future__ import annotations

from typing import Iterable, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.ndarray import NDArray

from .. import kernels
from ..compression import CompressionParams
from ..plan import Slice


def legacy(arrays: Iterable[NDArray]) -> List[NDArray]:
    """The same arrays, without a copy, for operators that know none of mxnet.numpy.

    They crash on a shape without axes, which becomes (1,).
    """
    arrays = [array.as_nd_ndarray() for array in arrays]
    return [array if array.shape else array.reshape((1,)) for array in arrays]


def params_for(array: NDArray, params: CompressionParams) -> CompressionParams:
    """How a gradient that is on the device of this array is compressed, of what was asked for."""
    return params.on_gpu if array.context.device_type == "gpu" else params


def _with_storage(array: NDArray, stype: str) -> NDArray:
    """The array itself if it is stored so: tostype would copy it."""
    return array if array.stype == stype else array.tostype(stype)


def _part(array: NDArray, piece: Slice) -> NDArray:
    """The elements of a slice, which share the array's memory."""
    return array.reshape(-1)[piece.begin : piece.end]


class Gradient:
    """The copies of one tensor (one a context), and where the result goes.

    The worker's own sum, and the result, are arrays on the CPU, which share memory where the copies
    may be overwritten. Or the sum of a slice is made on a GPU, and its result spread from there.

    What is of one array on the CPU may be used again; any other is good for one exchange. Sum and
    result are stored as `stype` says.

    Attributes
    ----------
    contexts : tuple of Context
        Of the copies.
    from_gpus : bool
        Whether all of them are on GPUs.
    """

    def __init__(
        self, arrays: Sequence[NDArray], targets: Sequence[NDArray], stype: str = "default"
    ) -> None:
        given = arrays
        both = (*arrays, *targets)
        legacy_of = dict(zip(map(id, both), legacy(both)))  # an array in both becomes one object
        self._arrays = [legacy_of[id(array)] for array in arrays]
        self._targets = [legacy_of[id(target)] for target in targets]
        self._stype = stype
        self.contexts = tuple(array.context for array in self._arrays)
        self.from_gpus = all(context.device_type == "gpu" for context in self.contexts)
        self._on_cpu: Optional[Tuple[NDArray, NDArray]] = None
        self._wanted = False  # whether the result is written there
        (first, *others), (context, *_) = self._arrays, self.contexts
        in_place = any(target is first for target in self._targets)
        alone = not others and context.device_type == "cpu" and first.stype == stype
        self._only = given[0] if alone and in_place else None

    def is_of(self, arrays: Sequence[NDArray]) -> bool:
        """Whether it is just this one array, from which it comes and to which it goes."""
        return len(arrays) == 1 and self._only is arrays[0]

    # On the CPU

    @property
    def own(self) -> NDArray:
        """The sum of the copies."""
        return (self._on_cpu or self._make())[0]

    @property
    def result(self) -> NDArray:
        """Where the result is written, for `finish`."""
        self._wanted = True
        return (self._on_cpu or self._make())[1]

    def _make(self) -> Tuple[NDArray, NDArray]:
        (first, *_), (context, *_) = self._arrays, self.contexts
        cpu = context if context.device_type == "cpu" else mx.cpu()
        local = [_with_storage(a, self._stype).as_in_context(cpu) for a in self._arrays]
        own = result = mx.nd.add_n(*local) if len(local) > 1 else local[0]
        if own is first and not any(target is first for target in self._targets):
            alike = [target for target in self._targets if _alike(target, own)]
            result = alike[0] if alike else _empty(own, cpu)
        self._on_cpu = own, result
        return self._on_cpu

    def finish(self) -> None:
        """Copy the result, if it was asked for, to every target."""
        if not self._wanted:
            return
        for target in self._targets:
            if target is not self.result:
                _with_storage(self.result, target.stype).copyto(target)

    # On a GPU

    @property
    def only(self) -> NDArray:
        """The one copy that there is."""
        (array,) = self._arrays
        return array

    @property
    def gpus(self) -> Tuple[mx.Context, ...]:
        """Those that have a copy; none if anything of it is elsewhere, or in rows."""
        if not self.from_gpus:
            return ()
        dense = all(array.stype == "default" for array in (*self._arrays, *self._targets))
        back = all(target.context.device_type == "gpu" for target in self._targets)
        return self.contexts if dense and back else ()

    def sum_on(self, gpu: mx.Context, piece: Slice) -> Tuple[NDArray, int]:
        """An array on a GPU that has the sum of a slice, and where in it that begins."""
        if self.contexts == (gpu,):
            return self._arrays[0], piece.begin
        first, *others = (_part(array, piece).as_in_context(gpu) for array in self._arrays)
        return sum(others, first), 0

    def room_on(self, gpu: mx.Context, piece: Slice) -> Tuple[NDArray, int]:
        """An array on a GPU for the result of a slice, for `spread`, and where in it to write."""
        for target in self._targets:
            if target.context == gpu:
                return target, piece.begin
        return mx.nd.empty(piece.size, gpu, self._arrays[0].dtype), 0

    def spread(self, array: NDArray, begin: int, piece: Slice) -> None:
        """Copy the result of a slice, which is in what `room_on` gave, to every target."""
        others = [target for target in self._targets if target is not array]
        if others:
            result = array.reshape(-1)[begin : begin + piece.size]
            for target in others:
                result.copyto(_part(target, piece))


def _empty(like: NDArray, context: mx.Context) -> NDArray:
    if like.stype == "default":
        return mx.nd.empty(like.shape, context, like.dtype)
    return mx.nd.sparse.zeros(like.stype, like.shape, context, like.dtype)


def _alike(a: NDArray, b: NDArray) -> bool:
    properties = [(x.stype, x.context, x.shape, x.dtype) for x in (a, b)]
    return properties[0] == properties[1]


def sum_over_contexts(arrays: Sequence[NDArray]) -> None:
    """Replace the copies of a dense gradient, one a context, by their sum."""
    first, *others = legacy(arrays)
    if others:
        mx.nd.add_n(first, *(other.as_in_context(first.context) for other in others), out=first)
        for other in others:
            first.copyto(other)


def sums_of(gradients: Sequence[Gradient]) -> List[NDArray]:
    """The worker's own sums, for `clip_factor`: on the one GPU that all are on, or on the CPU."""
    gpus = {gradient.gpus for gradient in gradients}
    on_one = len(gpus) == 1 and len(next(iter(gpus))) == 1
    if on_one and kernels.runs_on_gpu("clip"):
        return [gradient.only for gradient in gradients]
    return [gradient.own for gradient in gradients]


Gradients = Mapping[str, Gradient]
"""By tensor; a chunk's tensors may be missing, if they take no part in a step."""
