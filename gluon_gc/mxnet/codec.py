"""The codecs of a message at work in MXNet: with feedback, momentum and random streams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .. import kernels
from ..compression import CompressionParams
from ..compression.stream import Stream
from . import operators
from .message_memory import MessageMemory
from .operators import MessageRows, Places


@dataclass(frozen=True)
class Part:
    """One chunk of a message.

    Parameters
    ----------
    size : int
        Number of elements.
    start : tuple of two int, optional
        Where its random stream starts, for a compressor that draws.
    refused : str
        What an error calls it if it is not finite; "": that is no error.
    """

    size: int
    start: Optional[Tuple[int, int]] = None
    refused: str = ""


class MessageCodec:
    """Compresses, aggregates and decodes the chunks of a message, step after step.

    Everything is queued on MXNet's engine, and returns at once.

    Parameters
    ----------
    params : CompressionParams
        With a compressor; the same for all chunks.
    dtype : str
        "float32" or "float64": of the arithmetic and the state.
    parts : sequence of Part
        The chunks.

    Attributes
    ----------
    memory : MessageMemory
        Residuals and momentum.
    """

    def __init__(self, params: CompressionParams, dtype: str, parts: Sequence[Part]) -> None:
        self._params, self._dtype, self.parts = params, dtype, tuple(parts)
        self._epoch: Optional[int] = None
        self._streams = [Stream(part.start) for part in parts]
        self._drawn_alike: Dict[str, str] = {}
        self.meter = operators.new_meter()
        self._gpu: Optional[mx.Context] = None
        self._pinned: Dict[str, NDArray] = {}
        self._configure()
        self.memory = MessageMemory(self.codecs, dtype)
        self._refused = operators.refusing([part.refused for part in parts])

    def _configure(self) -> None:
        """Make the codecs, whose draws may change with the epoch, and what operators are told."""
        options = self._params.options(self._epoch)
        name = self._params.compressor.name
        self.codecs = [kernels.Codec(name, options, part.size, self._dtype) for part in self.parts]
        first = self.codecs[0]
        self.summable, self._alike = first.traits.summable, first.traits.draws_alike
        self.payload_bytes = sum(codec.payload_bytes for codec in self.codecs)
        self._options = {"options": kernels.as_text(options)}
        self._attribute = operators.MessageAttribute(
            compressor=name,
            dtype=self._dtype,
            sizes=operators.listed(part.size for part in self.parts),
            payload_bytes=self.payload_bytes,
            summable=self.summable,
        )

    def rows(self) -> MessageRows:
        """How its messages travel through MXNet's parameter server."""
        parts = tuple((codec.payload_bytes, codec.length_at) for codec in self.codecs)
        return MessageRows(parts, in_one=self._params.compressor.full)

    def _positions(self) -> Dict[str, str]:
        """Where the chunks draw; they move on."""
        if not self._params.compressor.traits.draws:
            return {}
        taken = (stream.take(codec.draws) for stream, codec in zip(self._streams, self.codecs))
        return {"positions": operators.listed(word for position in taken for word in position)}

    def move_on(self) -> Dict[str, str]:
        """Let random streams move on as in a step; where `compress` draws in it."""
        positions = self._positions()
        if self._alike:
            self._drawn_alike = positions
        return positions

    def set_epoch(self, epoch: int) -> None:
        """Compress as in an epoch, counted from 0."""
        self._epoch = epoch
        self._configure()

    def compress(
        self,
        gradients: Sequence[NDArray],
        places: Places,
        scale: float = 1.0,
        ratio: float = 1.0,
        framing: Optional[Mapping[str, Any]] = None,
        out: Optional[NDArray] = None,
        factor: Optional[NDArray] = None,
        step: int = 0,
    ) -> NDArray:
        """Make a message of scale * gradients, after momentum and feedback.

        Parameters
        ----------
        gradients : sequence of NDArray
            Of any shape, of the codec's dtype or float16; where `move_to` said.
        places : tuple of (int, int)
            For each chunk, its gradient and where it begins in it.
        scale : float
        ratio : float
            Previous learning rate over the current one, for feedback that is not "vanilla".
        framing : mapping, optional
            `MessageRows.framing_at` the rows to write; else payloads side by side.
        out : NDArray, optional
            Where to write.
        factor : NDArray, optional
            Multiplies the gradients too; float64, shape (1,).
        step : int
            Number of the exchange, from 1, with which the meter has it; 0: of none.
        """
        positions = self.move_on()
        framing, meters = framing or {}, (self.meter,)
        rows, target = framing, out
        if self._gpu:  # which has no meter, and frames nothing
            rows, meters, target = {}, (), None
        factors = () if factor is None else (factor.as_in_context(self._gpu or mx.cpu()),)
        kept = self.memory.arrays
        layout = dict(states=len(kept), metered=len(meters), clipped=len(factors), **rows)
        values = dict(scale=float(scale), ratio=float(ratio), step=step)
        message = operators.call(
            "compress",
            (*kept, *meters, *gradients, *factors),
            target,
            **self._options,
            **self._attribute("compress", layout, len(gradients), places, **values),
            **positions,
        )
        return self._packed(message, framing, out, step) if self._gpu else message

    def aggregate(
        self,
        messages: NDArray,
        count: int,
        threads: int = 1,
        framing: Optional[Mapping[str, Any]] = None,
    ) -> NDArray:
        """The message of the sum of `count` messages, in their order, with feedback of its own."""
        layout = dict(states=len(self.memory.arrays), count=count, threads=threads, **framing or {})
        return operators.call(
            "aggregate",
            (messages, *self.memory.arrays),
            **self._options,
            **self._attribute("aggregate", layout),
            **self._positions(),
        )

    def decompress(
        self,
        messages: Sequence[NDArray],
        gradients: Sequence[NDArray],
        places: Places,
        count: int = 1,
        framing: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Write the sum of `count` messages to gradients, which are as `compress` had them."""
        layout = dict(arrays=len(messages), count=count, metered=1, **framing or {})
        meter, refused = self.meter, self._refused
        if self._gpu:
            messages = [self._unpacked(messages, layout).as_in_context(self._gpu)]
            layout, meter, refused = dict(arrays=1, count=count, metered=0), None, {}
        operators.call(
            "decompress",
            (*messages, *gradients),
            meter,
            **self._options,
            **self._attribute("decompress", layout, len(gradients), places),
            **self._drawn_alike,
            **refused,
        )

    @cached_property
    def _unread(self) -> NDArray:
        """A meter for what is counted elsewhere."""
        return operators.new_meter()

    def unframed(
        self, messages: Sequence[NDArray], out: NDArray, framing: Mapping[str, Any]
    ) -> None:
        """Write the payloads of messages, which are framed so, side by side; uint8."""
        layout = dict(arrays=len(messages), count=out.size // self.payload_bytes, **framing)
        inputs = (*messages, self._unread)
        operators.call("unpack", inputs, out, **self._options, **self._attribute("unpack", layout))

    # Gradients on a GPU: payloads come and go through pinned memory

    @cached_property
    def runs_on_gpu(self) -> bool:
        """Whether `move_to` a GPU is possible; if kernels are not there, the log says why, once."""
        return self._params.compressor.runs_on_gpu()

    def move_to(self, gpu: Optional[mx.Context]) -> None:
        """Have gradients on a GPU from now on, or on the CPU."""
        self._gpu = gpu
        self.memory.move_to(gpu)

    def _packed(
        self, payloads: NDArray, framing: Mapping[str, Any], out: Optional[NDArray], step: int
    ) -> NDArray:
        """The message of payloads that a GPU made."""
        host = self._pinned_memory("sent", payloads.size, payloads.dtype)
        payloads.copyto(host)
        message = self._attribute("pack", framing, step=step)
        return operators.call("pack", (self.meter, host), out, **self._options, **message)

    def _unpacked(self, messages: Sequence[NDArray], layout: Mapping[str, Any]) -> NDArray:
        """The payloads of messages, checked."""
        host = self._pinned_memory("received", layout["count"] * self.payload_bytes, np.uint8)
        inputs, message = (*messages, self.meter), self._attribute("unpack", layout)
        return operators.call("unpack", inputs, host, **self._options, **message, **self._refused)

    def _pinned_memory(self, name: str, size: int, dtype: Any) -> NDArray:
        """Memory that a GPU copies to and from by itself; the same each time."""
        if name not in self._pinned or self._pinned[name].size != size:
            self._pinned[name] = mx.nd.empty(size, mx.cpu_pinned(), dtype)
        return self._pinned[name]

    def layouts(self) -> List[kernels.Layout]:
        """Shape and dtype of each array of `state`."""
        return [codec.saved_layout() for codec in self.codecs]

    def state(self) -> List[Dict[str, np.ndarray]]:
        """A checkpoint's arrays of each chunk: "stream", "residual", "momentum", if it has them."""
        states = self.memory.saved(self.codecs)
        if self._params.compressor.traits.draws:
            states = [{"stream": s.state(), **saved} for s, saved in zip(self._streams, states)]
        return states

    def load_state(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Go on from what `state` returned."""
        self.memory.load(self.codecs, states)
        if self._params.compressor.traits.draws:
            for stream, state in zip(self._streams, states):
                stream.load_state(state["stream"])
