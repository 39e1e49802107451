"""Gradients of several contexts as one array."""

from __future__ import annotations

from typing import Iterable, List, Mapping, Sequence

import mxnet as mx
from mxnet.ndarray import NDArray


def legacy(arrays: Iterable[NDArray]) -> List[NDArray]:
    """The same arrays, without a copy, for operators that know none of mxnet.numpy."""
    return [array.as_nd_ndarray() for array in arrays]


def _with_storage(array: NDArray, stype: str) -> NDArray:
    """The array itself if it is stored so: tostype would copy it."""
    return array if array.stype == stype else array.tostype(stype)


class Gradient:
    """The copies of one tensor (one a context) as CPU arrays: the worker's own sum, which travels,
    and the result. They share memory where the copies may be overwritten.

    What is of one array on the CPU may be used again; any other is good for one exchange. Both are
    stored as `stype` says.

    Attributes
    ----------
    own, result : NDArray
    """

    def __init__(
        self, arrays: Sequence[NDArray], targets: Sequence[NDArray], stype: str = "default"
    ) -> None:
        given = arrays
        made = {id(array): array.as_nd_ndarray() for array in (*arrays, *targets)}
        arrays, targets = ([made[id(array)] for array in some] for some in (arrays, targets))
        self._targets = targets
        first, context = arrays[0], arrays[0].context
        cpu = context if context.device_type == "cpu" else mx.cpu()
        local = [_with_storage(array, stype).as_in_context(cpu) for array in arrays]
        own = mx.nd.add_n(*local) if len(local) > 1 else local[0]
        self.result = own
        if own is first and not any(target is first for target in targets):
            alike = [target for target in targets if _alike(target, own)]
            self.result = alike[0] if alike else _empty(own, cpu)
        self.own = own
        self._only = given[0] if len(given) == 1 and self.result is own is first else None

    def is_of(self, arrays: Sequence[NDArray]) -> bool:
        """Whether it is just this one array, from which it comes and to which it goes."""
        return len(arrays) == 1 and self._only is arrays[0]

    def finish(self) -> None:
        """Copy the result to every target."""
        for target in self._targets:
            if target is not self.result:
                _with_storage(self.result, target.stype).copyto(target)


def _empty(like: NDArray, context: mx.Context) -> NDArray:
    if like.stype == "default":
        return mx.nd.empty(like.shape, context, like.dtype)
    return mx.nd.sparse.zeros(like.stype, like.shape, context, like.dtype)


def _alike(a: NDArray, b: NDArray) -> bool:
    properties = [(x.stype, x.context, x.shape, x.dtype) for x in (a, b)]
    return properties[0] == properties[1]


Gradients = Mapping[str, Gradient]
"""By tensor; a chunk's tensors may be missing, if they take no part in a step."""
