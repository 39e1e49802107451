"""Gradients of several contexts as one flat array, and several of these as one plain chunk."""

from __future__ import annotations

from typing import Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .. import operators
from .plan import Chunk, Slice


def _with_storage(array: NDArray, stype: str) -> NDArray:
    """The array itself if it is stored so: tostype would copy it."""
    return array if array.stype == stype else array.tostype(stype)


class Gradient:
    """The copies of one tensor (one a context) as flat CPU arrays: the worker's own sum, which
    travels, and the result. They share memory where the copies may be overwritten."""

    def __init__(self, arrays: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
        self._targets = targets
        first, context = arrays[0], arrays[0].context
        cpu = context if context.device_type == "cpu" else mx.cpu()
        local = [_with_storage(array, "default").as_in_context(cpu) for array in arrays]
        own = mx.nd.add_n(*local) if len(local) > 1 else local[0]
        self._result = own
        if own is first and not any(target is first for target in targets):
            alike = [target for target in targets if _alike(target, own)]
            self._result = alike[0] if alike else mx.nd.empty(own.shape, cpu, own.dtype)
        self._own = own.reshape((-1,))
        self._flat_result = self._result.reshape((-1,))

    def own(self, piece: Slice) -> NDArray:
        """What this worker has of a slice."""
        return _part(self._own, piece)

    def result(self, piece: Slice) -> NDArray:
        """Where the elements of a slice are to be written."""
        return _part(self._flat_result, piece)

    def finish(self) -> None:
        """Copy the result to every target."""
        for target in self._targets:
            if target is not self._result:
                _with_storage(self._result, target.stype).copyto(target)


def _alike(a: NDArray, b: NDArray) -> bool:
    properties = [(x.stype, x.context, x.shape, x.dtype) for x in (a, b)]
    return properties[0] == properties[1]


def _part(flat: NDArray, piece: Slice) -> NDArray:
    return flat if piece.size == flat.size else flat[piece.begin : piece.end]


Gradients = Mapping[str, Gradient]
"""By tensor; a chunk's tensors may be missing, if they take no part in a step."""


def fuse(chunk: Chunk, gradients: Gradients, scale: float) -> NDArray:
    """The values of a plain chunk, multiplied by `scale`, in the dtype in which they travel."""

    def travelling(array: NDArray) -> NDArray:
        if chunk.dtype == "float16" and array.dtype == np.float32:
            return operators.half_from_float(array, scale)
        return array.astype(chunk.dtype, copy=False) * scale

    arrays = [
        gradients[piece.tensor].own(piece)
        if piece.tensor in gradients
        else mx.nd.zeros(piece.size, dtype=chunk.dtype)
        for piece in chunk.slices
    ]
    if len({array.dtype for array in arrays}) == 1:
        return travelling(_joined(arrays))  # one operator for all
    return _joined([travelling(array) for array in arrays])


def _joined(arrays: Sequence[NDArray]) -> NDArray:
    return mx.nd.concat(*arrays, dim=0) if len(arrays) > 1 else arrays[0]


def defuse(chunk: Chunk, values: NDArray, gradients: Gradients) -> None:
    """Write the values of a plain chunk to the gradients that they are of."""
    begin = 0
    for piece in chunk.slices:
        end = begin + piece.size
        if piece.tensor in gradients:
            target = gradients[piece.tensor].result(piece)
            part = values[begin:end] if len(chunk.slices) > 1 else values
            if part.dtype == np.float16 and target.dtype == np.float32:
                operators.float_from_half(part, out=target)
            else:
                part.copyto(target)
        begin = end
