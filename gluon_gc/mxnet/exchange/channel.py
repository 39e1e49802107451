"""A channel carries one message in each step: values, encode, exchange, decode, deliver.

The backend supplies the exchange; the channel does the rest.
"""

from __future__ import annotations

import ctypes
import itertools
from functools import cached_property
from typing import Any, Mapping, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from ... import kernels
from ...exchange.plan import Chunk, Slice, Tensor
from ..engine import operators
from ..engine.operators import KEPT_SPANS, METER, Offsets
from .coder import MessageCoder, Part
from .gradient import Gradients, Job
from .rows_coder import RowsCoder

Start = Tuple[int, int]
AnyCoder = Union[MessageCoder, RowsCoder]


class Metered:
    """Reads the meter that a channel's operators update."""

    def __init__(self, meter: NDArray) -> None:
        self._meter = meter
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(meter.handle, ctypes.byref(address)))
        memory = (ctypes.c_double * meter.size).from_address(address.value)
        self._now = np.ctypeslib.as_array(memory)  # valid while the meter lives

    def since(self, earlier: Mapping[str, float] | None) -> dict[str, float]:
        """The differences of the meter's fields from an earlier result of `since(None)`.

        The call waits until all operators have run.
        """
        so_far, earlier = operators.read_meter(self._meter), earlier or {}
        return {field: so_far[field] - earlier.get(field, 0) for field in so_far}

    def under_way(self) -> tuple[int, bool]:
        """The number of messages, and whether the last answer is missing. It does not wait."""
        calls = int(self._now[0])
        _, begin, end = self._now[len(METER) + 3 * (calls % KEPT_SPANS) :][:3]
        return calls, calls > 0 and bool(begin == end)

    def spans(self, steps: float) -> dict[int, tuple[float, float]]:
        """Begin and end of this number of latest steps, if kept, in seconds, by step number."""
        rows = self._meter.asnumpy()[len(METER) :].reshape(KEPT_SPANS, 3)
        spans = sorted(map(tuple, rows[rows[:, 0] > 0].tolist()))
        kept = spans[max(0, len(spans) - int(steps)) :]
        return {int(step): (begin, end) for step, begin, end in kept}

    def nonfinite(self) -> int:
        """How many results were not finite; waits until all results are there."""
        return int(operators.read_meter(self._meter)["nonfinite"])


class Channel(Metered):
    """The chunks of a message, with the coder that compresses and decompresses them."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        tensors: Mapping[str, Tensor],
        starts: Sequence[Start | None],
    ) -> None:
        self.chunks = tuple(chunks)
        (first, *_) = chunks
        self.params, self.dtype = first.params, first.dtype
        self.aggregated, self.gathered = first.aggregated, first.gathered
        self.message_bytes = sum(chunk.message_bytes for chunk in chunks)
        self.size = sum(chunk.size for chunk in chunks)
        self.slices = [piece for chunk in chunks for piece in chunk.slices]
        numbers = {name: i for i, name in enumerate(dict.fromkeys(p.tensor for p in self.slices))}
        self.tensors = numbers.keys()
        self._ends = {piece.tensor: piece.end for piece in self.slices}
        hierarchical = all(tensors[name].params.hierarchical for name in numbers)
        self.in_rows = first.rows > 0
        self.hierarchical = hierarchical and not self.in_rows
        self._offsets = tuple((numbers[piece.tensor], piece.begin) for piece in self.slices)
        self._layout = SideBySide(self.dtype, [piece.size for piece in self.slices])
        self.coder: AnyCoder | None = None
        if self.params is None:
            self._encoding = PlainCoder(self._layout, self.dtype, self.slices, tensors)
        else:
            refused = [tensors[piece.tensor].refused for piece in self.slices]
            parts = [Part(c.size, s, r) for c, s, r in zip(chunks, starts, refused)]
            if self.in_rows:
                self.coder = RowsCoder(self.params, first.rows, *parts)
            else:
                self.coder = MessageCoder(self.params, self.dtype, parts)
            self._encoding = self.coder
        self.gpu: mx.Context | None = None
        self.undoable = False
        self._absent: dict[str, NDArray] = {}
        super().__init__(self._encoding.meter)

    @property
    def framed(self) -> bool:
        """Whether payloads travel. Otherwise the engine sums values."""
        return self.aggregated or self.gathered

    @property
    def is_lossy(self) -> bool:
        """Whether the average may differ from that of float32."""
        return self.params is not None or self.dtype == "float16"

    @property
    def runs_on_gpu(self) -> bool:
        return self._encoding.runs_on_gpu

    def move_to(self, gpu: mx.Context | None) -> None:
        """Expect gradients on this GPU from now on (see `runs_on_gpu`), or on the CPU if None."""
        if gpu != self.gpu:
            self._encoding.move_to(gpu)
            self.gpu = gpu

    def encode(
        self,
        job: Job,
        values: NDArray | None = None,
        framing: Mapping[str, Any] | None = None,
        out: NDArray | None = None,
    ) -> NDArray:
        """The message of a job's gradients, or of `values`, which are already multiplied."""
        scale, factor = self._scale(job), job.factor
        if values is not None:
            arrays, offsets, scale, factor = [values], self._layout.offsets, 1.0, None
        elif self.gpu is not None:
            arrays, offsets = _together(self._on_gpu(job.gradients, "sum_on"))
        else:
            arrays, offsets = self._arrays(job.gradients, "own")
        ratio, step = job.ratios.get(self.slices[0].tensor, 1.0), job.step
        return self._encoding.compress(arrays, offsets, scale, ratio, framing, out, factor, step)

    def copy(self, job: Job, to: NDArray, metered: bool = False) -> NDArray:
        """Write this worker's own values side by side. If `metered`, the meter counts this call."""
        arrays, offsets = self._arrays(job.gradients, "own")
        meter = dict(meter=self._meter, step=job.step) if metered else {}
        values = dict(scale=self._scale(job), out=to, factor=job.factor)
        return self._layout.fuse(arrays, offsets, **values, **meter)

    def deliver(
        self,
        received: Sequence[NDArray],
        gradients: Gradients,
        count: int = 1,
        framing: Mapping[str, Any] | None = None,
    ) -> None:
        """Decode the received messages, and write the sum to the gradients."""
        unit = self._unit(gradients)
        if self.gpu is None:
            arrays, offsets = self._arrays(gradients, "result")
            self._encoding.decompress(received, arrays, offsets, count, framing, unit)
            return
        results = self._on_gpu(gradients, "room_on")
        self._encoding.decompress(received, *_together(results), count, framing, unit)
        for piece, (array, begin) in zip(self.slices, results):
            if piece.tensor in gradients:
                gradients[piece.tensor].broadcast(array, begin, piece)

    def _scale(self, job: Job) -> float:
        """The multiplier of a job's gradients. An uncompressed message is in their unit."""
        return job.scale if self.params is not None else job.scale / self._unit(job.gradients)

    def _unit(self, gradients: Gradients) -> float:
        """The unit of the float16 gradients. Uncompressed, they share no message with others."""
        units = (gradients[name].unit for name in self.tensors if name in gradients)
        return next((unit for unit in units if unit != 1.0), 1.0)

    def _arrays(self, gradients: Gradients, which: str) -> tuple[list[NDArray], Offsets]:
        """The arrays with the slices; for each slice, the index of its array and its offset."""
        arrays = [
            getattr(gradients[name], which) if name in gradients else self._nothing(end, which)
            for name, end in self._ends.items()
        ]
        return arrays, self._offsets

    def _on_gpu(self, gradients: Gradients, which: str) -> list[tuple[NDArray, int]]:
        """For each slice: an array on the GPU that holds it, and its offset in that array."""
        return [
            getattr(gradients[piece.tensor], which)(self.gpu, piece)
            if piece.tensor in gradients
            else (self._nothing(piece.size, which), 0)
            for piece in self.slices
        ]

    def _nothing(self, size: int, which: str) -> NDArray:
        """An array for a tensor that takes no part: zeros to send, or room for an unused result."""
        context = self.gpu or mx.cpu()
        name = f"{which} {size} {context}"
        if name not in self._absent:
            self._absent[name] = mx.nd.zeros(size, context, dtype=self.dtype)
        return self._absent[name]

    def shares(self) -> list[tuple[str, float]]:
        """For each slice: its tensor, and its share of the message's bytes."""
        if self.coder is not None:
            sizes = [codec.payload_bytes for codec in self.coder.codecs]
        else:
            sizes = [piece.size for piece in self.slices]
        total = sum(sizes)
        return [(piece.tensor, size / total) for piece, size in zip(self.slices, sizes)]


def _together(slices: Sequence[tuple[NDArray, int]]) -> tuple[list[NDArray], Offsets]:
    """Each distinct array once; for each slice: the index of its array, and its offset."""
    arrays = {id(array): array for array, _ in slices}
    numbers = {key: number for number, key in enumerate(arrays)}
    return list(arrays.values()), tuple((numbers[id(array)], begin) for array, begin in slices)


class SideBySide:
    """The layout of slices of gradients side by side in one array of this dtype."""

    def __init__(self, dtype: str, sizes: Sequence[int]) -> None:
        self.sizes = dict(sizes=operators.listed(sizes))
        self.offsets = tuple((0, begin) for begin in (0, *itertools.accumulate(sizes[:-1])))
        self.attribute = operators.MessageAttribute(dtype=dtype)

    def fuse(
        self,
        gradients: Sequence[NDArray],
        offsets: Offsets,
        scale: float,
        out: NDArray | None,
        factor: NDArray | None,
        meter: NDArray | None = None,
        step: int | None = None,
    ) -> NDArray:
        """The slices times scale and factor, rounded once; `meter` counts the call."""
        meters = () if meter is None else (meter,)
        factors = () if factor is None else (factor.as_in_context(gradients[0].context),)
        layout = dict(self.sizes, metered=len(meters), clipped=len(factors))
        values = dict(scale=float(scale), step=step)
        message = self.attribute("fuse", layout, len(gradients), offsets, **values)
        return operators.call("fuse", (*meters, *gradients, *factors), out, **message)


class PlainCoder:
    """Copies slices of gradients to one array and back, with the interface of a `MessageCoder`."""

    def __init__(
        self, layout: SideBySide, dtype: str, slices: Sequence[Slice], tensors: Mapping[str, Tensor]
    ) -> None:
        self._layout, self._dtype = layout, dtype
        slice_tensors = [tensors[piece.tensor] for piece in slices]
        self._floating = all(tensor.floating for tensor in slice_tensors)
        checked = operators.listed(int(tensor.checked) for tensor in slice_tensors)
        self._metered = dict(layout.sizes, checked=checked, metered=1)
        self._unchecked = dict(layout.sizes, checked=operators.listed([0] * len(slices)), metered=0)
        self._refused = operators.refusing([tensor.refused for tensor in slice_tensors])
        self._size = sum(piece.size for piece in slices)
        self._whole = SideBySide(dtype, [self._size])
        self.meter = operators.new_meter()
        self._gpu: mx.Context | None = None
        self._pinned: NDArray | None = None

    @cached_property
    def runs_on_gpu(self) -> bool:
        """Whether `move_to` a GPU is possible. If kernels are missing, the log says why, once."""
        return self._floating and kernels.runs_on_gpu("convert")

    def move_to(self, gpu: mx.Context | None) -> None:
        self._gpu = gpu

    def compress(
        self,
        gradients: Sequence[NDArray],
        offsets: Offsets,
        scale: float,
        ratio: float,
        framing: Mapping[str, Any] | None,
        out: NDArray | None,
        factor: NDArray | None,
        step: int,
    ) -> NDArray:
        metered = dict(meter=self.meter, step=step)
        if self._gpu is None:
            return self._layout.fuse(gradients, offsets, scale, out, factor, **metered)
        self._layout.fuse(gradients, offsets, scale, None, factor).copyto(self._host())
        return self._whole.fuse([self._host()], self._whole.offsets, 1.0, out, None, **metered)

    def decompress(
        self,
        messages: Sequence[NDArray],
        gradients: Sequence[NDArray],
        offsets: Offsets,
        count: int = 1,
        framing: Mapping[str, Any] | None = None,
        unit: float = 1.0,
    ) -> None:
        if self._gpu is None:
            self._defuse(messages, gradients, offsets)
            return
        self._defuse(messages, [self._host()], self._layout.offsets)
        on_gpu = self._host().as_in_context(self._gpu)
        message = self._layout.attribute("defuse", self._unchecked, len(gradients), offsets)
        operators.call("defuse", (on_gpu, *gradients), **message)

    def _defuse(
        self, values: Sequence[NDArray], gradients: Sequence[NDArray], offsets: Offsets
    ) -> None:
        message = self._layout.attribute("defuse", self._metered, len(gradients), offsets)
        operators.call("defuse", (*values, *gradients), self.meter, **message, **self._refused)

    def _host(self) -> NDArray:
        if self._pinned is None:
            self._pinned = mx.nd.empty(self._size, mx.cpu_pinned(), self._dtype)
        return self._pinned
