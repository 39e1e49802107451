"""Uncompressed messages: slices of gradients side by side."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any, Mapping, Optional, Sequence

import mxnet as mx
from mxnet.ndarray import NDArray

from ... import kernels
from ...plan import Slice, Tensor
from ..engine import operators
from ..engine.operators import Places


def fused(
    attribute: operators.MessageAttribute,
    gradients: Sequence[NDArray],
    places: Places,
    sizes: Mapping[str, str],
    scale: float,
    out: Optional[NDArray],
    factor: Optional[NDArray],
    meter: Optional[NDArray] = None,
    step: Optional[int] = None,
) -> NDArray:
    """Slices side by side, times scale and factor, rounded once.

    With a meter, the call is counted for this step.
    """
    meters = () if meter is None else (meter,)
    factors = () if factor is None else (factor.as_in_context(gradients[0].context),)
    layout = dict(sizes, metered=len(meters), clipped=len(factors))
    message = attribute("fuse", layout, len(gradients), places, scale=float(scale), step=step)
    return operators.call("fuse", (*meters, *gradients, *factors), out, **message)


class Values:
    """Copies slices of gradients to one array and back; it has the interface of a `MessageCodec`.

    All calls are queued on MXNet's engine and return at once.

    Parameters
    ----------
    dtype : str
        The dtype of the array.
    slices : sequence of Slice
    tensors : mapping
        The tensors by name.
    """

    def __init__(self, dtype: str, slices: Sequence[Slice], tensors: Mapping[str, Tensor]) -> None:
        self._dtype, sizes = dtype, [piece.size for piece in slices]
        slice_tensors = [tensors[piece.tensor] for piece in slices]
        self._floating = all(tensor.floating for tensor in slice_tensors)
        self._sizes = dict(sizes=operators.listed(sizes))
        checked = operators.listed(int(tensor.checked) for tensor in slice_tensors)
        self._metered = dict(self._sizes, checked=checked, metered=1)
        self._unchecked = dict(self._sizes, checked=operators.listed([0] * len(sizes)), metered=0)
        self._refused = operators.refusing([tensor.refused for tensor in slice_tensors])
        self._size = sum(sizes)
        self._whole = dict(sizes=operators.listed([self._size]))
        begins = (0, *itertools.accumulate(sizes[:-1]))
        self._side_by_side = tuple((0, begin) for begin in begins)
        self.meter = operators.new_meter()
        self._gpu: Optional[mx.Context] = None
        self._pinned: Optional[NDArray] = None
        self._attribute = operators.MessageAttribute(dtype=dtype)

    @cached_property
    def runs_on_gpu(self) -> bool:
        """Whether `move_to` a GPU is possible. If kernels are missing, the log says why, once."""
        return self._floating and kernels.runs_on_gpu("convert")

    def move_to(self, gpu: Optional[mx.Context]) -> None:
        """Expect gradients on this GPU from now on, or on the CPU if None."""
        self._gpu = gpu

    def compress(
        self,
        gradients: Sequence[NDArray],
        places: Places,
        scale: float,
        ratio: float,
        framing: Optional[Mapping[str, Any]],
        out: Optional[NDArray],
        factor: Optional[NDArray],
        step: int,
    ) -> NDArray:
        """The slices times scale and factor; `ratio` and `framing` are not used."""
        metered = dict(meter=self.meter, step=step)
        if self._gpu is None:
            return fused(
                self._attribute, gradients, places, self._sizes, scale, out, factor, **metered
            )
        on_gpu = fused(self._attribute, gradients, places, self._sizes, scale, None, factor)
        on_gpu.copyto(self._host())
        return fused(
            self._attribute, [self._host()], ((0, 0),), self._whole, 1.0, out, None, **metered
        )

    def decompress(
        self,
        messages: Sequence[NDArray],
        gradients: Sequence[NDArray],
        places: Places,
        count: int = 1,
        framing: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Write the received array to the slices."""
        if self._gpu is None:
            self._defuse(messages, gradients, places)
            return
        self._defuse(messages, [self._host()], self._side_by_side)
        on_gpu = self._host().as_in_context(self._gpu)
        message = self._attribute("defuse", self._unchecked, len(gradients), places)
        operators.call("defuse", (on_gpu, *gradients), **message)

    def _defuse(
        self, values: Sequence[NDArray], gradients: Sequence[NDArray], places: Places
    ) -> None:
        """Write values to the slices on the CPU, and count this in the meter."""
        message = self._attribute("defuse", self._metered, len(gradients), places)
        operators.call("defuse", (*values, *gradients), self.meter, **message, **self._refused)

    def _host(self) -> NDArray:
        """Pinned memory for the values, which GPUs copy without the CPU."""
        if self._pinned is None:
            self._pinned = mx.nd.empty(self._size, mx.cpu_pinned(), self._dtype)
        return self._pinned
