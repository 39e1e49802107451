"""The way of a message: values, encode, what a backend does, decode, deliver."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet.ndarray import NDArray

from ..plan import Chunk, Tensor
from . import operators
from .codec import MessageCodec, Part
from .gradient import Gradients
from .job import Job
from .operators import Places
from .rows_codec import RowsCodec
from .values import Values, fused

Start = Tuple[int, int]


class Metered:
    """What was done in a channel, by the meter that its operators update.

    Parameters
    ----------
    meter : NDArray
    """

    def __init__(self, meter: NDArray) -> None:
        self._meter = meter
        self._now = operators.now_in(meter)
        self._before: Dict[str, float] = {}  # what `done` leaves out

    def done(self) -> Dict[str, float]:
        """What was done since `count_again`; waits until it is."""
        so_far = operators.read_meter(self._meter)
        return {field: so_far[field] - self._before.get(field, 0) for field in so_far}

    def under_way(self) -> Tuple[int, bool]:
        """How many messages were made so far, and if the answer to the last is to come.

        Waits for nothing, and any thread may ask.
        """
        return operators.messages_in(self._now)

    def count_again(self) -> None:
        """Let `done` begin at zero; the meter goes on, since errors say its number of the step."""
        self._before = operators.read_meter(self._meter)

    def spans(self) -> Dict[int, Tuple[float, float]]:
        """When the latest steps since `count_again` began and ended here, by their number."""
        spans = operators.read_spans(self._meter)
        before = len(spans) - int(self.done()["calls"])
        return {int(step): (begin, end) for step, begin, end in spans[max(0, before) :]}

    def nonfinite(self) -> int:
        """How often something that came back was not finite; waits until all is back."""
        return int(operators.read_meter(self._meter)["nonfinite"])


class Channel(Metered):
    """The chunks of a message, and what makes it of gradients and back.

    Parameters
    ----------
    chunks : sequence of Chunk
        Compressed alike, or one plain chunk.
    tensors : mapping
        The tensors by name.
    starts : sequence
        For each chunk where its random stream starts, or None.

    Attributes
    ----------
    codec : MessageCodec, RowsCodec or None
        None: values travel as they are.
    hierarchical : bool
        Whether the workers of a machine add up what they have before it travels, if they can.
    gpu : Context or None
        Where gradients are compressed; None: on the CPU.
    paths : list of str
        With a codec: how the name of what a checkpoint has of a chunk begins.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        tensors: Mapping[str, Tensor],
        starts: Sequence[Optional[Start]],
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
        of_tensors = all(tensors[name].params.hierarchical for name in numbers)
        self.hierarchical = of_tensors and not first.rows
        self._places = tuple((numbers[piece.tensor], piece.begin) for piece in self.slices)
        self.codec: Union[None, MessageCodec, RowsCodec] = None
        if self.params is None:
            self._coder = Values(self.dtype, self.slices, tensors)
        else:
            self.paths = [
                f"{tensors[piece.tensor].index}/{piece.begin}-{piece.end}" for piece in self.slices
            ]
            refused = [tensors[piece.tensor].refused for piece in self.slices]
            parts = [Part(c.size, s, r) for c, s, r in zip(chunks, starts, refused)]
            if first.rows:
                self.codec = RowsCodec(self.params, first.rows, *parts)
            else:
                self.codec = MessageCodec(self.params, self.dtype, parts)
            self._coder = self.codec
        self.gpu: Optional[mx.Context] = None
        self._attribute = operators.MessageAttribute(dtype=self.dtype)  # of values that are copied
        sizes = [piece.size for piece in self.slices]
        self._sizes = dict(sizes=operators.listed(sizes))
        self._side_by_side = tuple((0, begin) for begin in (0, *itertools.accumulate(sizes[:-1])))
        self._absent: Dict[str, NDArray] = {}
        super().__init__(self._coder.meter)

    @property
    def framed(self) -> bool:
        """Whether payloads travel, rather than values that an engine sums."""
        return self.aggregated or self.gathered

    @property
    def runs_on_gpu(self) -> bool:
        """Whether gradients can be made into messages on the GPU that they are on."""
        return self._coder.runs_on_gpu

    def move_to(self, gpu: Optional[mx.Context]) -> None:
        """Have gradients on a GPU from now on, if it `runs_on_gpu`, or on the CPU."""
        if gpu != self.gpu:
            self._coder.move_to(gpu)
            self.gpu = gpu

    def encode(
        self,
        job: Job,
        values: Optional[NDArray] = None,
        framing: Optional[Mapping[str, Any]] = None,
        out: Optional[NDArray] = None,
    ) -> NDArray:
        """What travels: payloads as `MessageCodec.compress` makes them, or values.

        `values` are those of the chunks side by side, times scale and factor, if they are not the
        gradients'.
        """
        scale, factor = job.scale, job.factor
        if values is not None:
            arrays, places, scale, factor = [values], self._side_by_side, 1.0, None
        elif self.gpu is not None:
            arrays, places = _together(self._on_gpu(job.gradients, "sum_on"))
        else:
            arrays, places = self._arrays(job.gradients, "own")
        ratio, step = job.ratios.get(self.slices[0].tensor, 1.0), job.step
        return self._coder.compress(arrays, places, scale, ratio, framing, out, factor, step)

    def copy(self, job: Job, to: NDArray, metered: bool = False) -> NDArray:
        """Write the slices' own values side by side, times scale and factor.

        If it is `metered`, that counts as what this worker does instead of `encode`.
        """
        arrays, places = self._arrays(job.gradients, "own")
        meter = dict(meter=self._meter, step=job.step) if metered else {}
        values = dict(scale=job.scale, out=to, factor=job.factor)
        return fused(self._attribute, arrays, places, self._sizes, **values, **meter)

    def deliver(
        self,
        received: Sequence[NDArray],
        gradients: Gradients,
        count: int = 1,
        framing: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Write what came back to the gradients."""
        if self.gpu is None:
            arrays, places = self._arrays(gradients, "result")
            self._coder.decompress(received, arrays, places, count, framing)
            return
        rooms = self._on_gpu(gradients, "room_on")
        self._coder.decompress(received, *_together(rooms), count, framing)
        for piece, (array, begin) in zip(self.slices, rooms):
            if piece.tensor in gradients:
                gradients[piece.tensor].spread(array, begin, piece)

    def _arrays(self, gradients: Gradients, which: str) -> Tuple[List[NDArray], Places]:
        """The arrays that the slices are of, and for each which one and where it begins.

        A tensor that takes no part in this step travels with others as zeros.
        """
        arrays = [
            getattr(gradients[name], which) if name in gradients else self._nothing(end, which)
            for name, end in self._ends.items()
        ]
        return arrays, self._places

    def _on_gpu(self, gradients: Gradients, which: str) -> List[Tuple[NDArray, int]]:
        """For each slice an array on the GPU, and where the slice begins in it."""
        return [
            getattr(gradients[piece.tensor], which)(self.gpu, piece)
            if piece.tensor in gradients
            else (self._nothing(piece.size, which), 0)
            for piece in self.slices
        ]

    def _nothing(self, size: int, which: str) -> NDArray:
        """Zeros to send, or room for what is not wanted."""
        context = self.gpu or mx.cpu()
        name = f"{which} {size} {context}"
        if name not in self._absent:
            self._absent[name] = mx.nd.zeros(size, context, dtype=self.dtype)
        return self._absent[name]

    def shares(self) -> List[Tuple[str, float]]:
        """For each slice its tensor and its share of the message's bytes."""
        if self.codec is not None:
            sizes = [codec.payload_bytes for codec in self.codec.codecs]
        else:
            sizes = [piece.size for piece in self.slices]
        total = sum(sizes)
        return [(piece.tensor, size / total) for piece, size in zip(self.slices, sizes)]


def _together(slices: Sequence[Tuple[NDArray, int]]) -> Tuple[List[NDArray], Places]:
    """The arrays that slices are of, each once; for each slice which one, and where it begins."""
    arrays = {id(array): array for array, _ in slices}
    numbers = {key: number for number, key in enumerate(arrays)}
    return list(arrays.values()), tuple((numbers[id(array)], begin) for array, begin in slices)
