"""Compresses and decompresses messages in MXNet, with error feedback and momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ... import kernels
from ...compression import CompressionParams
from ...compression.stream import Stream
from ..engine import operators
from ..engine.memory import as_ndarray
from ..engine.operators import MessageRows, Offsets

_CACHE_LINE_BYTES = 64


@dataclass(frozen=True)
class Part:
    """One chunk of a message."""

    size: int
    start: tuple[int, int] | None = None  # of its random stream, if the compressor draws
    refused: str = ""  # its name in the error about a NaN or an infinity; "": there is no error


class MessageCoder:
    """Compresses, aggregates and decompresses the chunks of a message, step after step.

    With gradient g (times the scale), momentum m, residual e, compressor C and decompressor D::

        m = mu m + g;  g = g + mu m       Nesterov momentum
        p = g + r e;   e = p - D(C(p))    error feedback

    The payload is C(p). r is previous / current learning rate, or 1 for "vanilla" feedback. DGC has
    formulas of its own. All calls are queued on MXNet's engine and return at once.

    Momentum before compression is from Zheng et al. 2019 ("Communication-Efficient Distributed
    Blockwise Momentum SGD with Error-Feedback"). Error feedback is from Seide et al. 2014 ("1-Bit
    Stochastic Gradient Descent") and Karimireddy et al. 2019 ("Error Feedback Fixes SignSGD").
    """

    def __init__(self, params: CompressionParams, dtype: str, parts: Sequence[Part]) -> None:
        self._params, self._dtype, self.parts = params, dtype, tuple(parts)
        self._epoch: int | None = None
        self._streams = [Stream(part.start) for part in parts]
        self._drawn_alike: dict[str, str] = {}
        self.meter = operators.new_meter()
        self._gpu: mx.Context | None = None
        self._pinned: dict[str, NDArray] = {}
        self._configure()
        self.memory = MessageMemory(self.codecs, dtype)
        self._refused = operators.refusing([part.refused for part in parts])

    def _configure(self) -> None:
        """Create the codecs and the operators' attributes, which may depend on the epoch."""
        options = self._params.options(self._epoch)
        name = self._params.compressor.name
        self.codecs = [kernels.Codec(name, options, part.size, self._dtype) for part in self.parts]
        first = self.codecs[0]
        self.summable, self._draws_alike = first.traits.summable, first.traits.draws_alike
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
        parts = tuple((codec.payload_bytes, codec.length_at) for codec in self.codecs)
        return MessageRows(parts, in_one=self._params.compressor.full)

    def _positions(self) -> dict[str, str]:
        """The positions of the chunks' random streams, which then advance."""
        if not self._params.compressor.traits.draws:
            return {}
        taken = (stream.take(codec.draws) for stream, codec in zip(self._streams, self.codecs))
        return {"positions": operators.listed(word for position in taken for word in position)}

    def move_on(self) -> dict[str, str]:
        """Advance random streams and memory as a step does; return the attribute `positions`."""
        self.memory.swap()
        positions = self._positions()
        if self._draws_alike:
            self._drawn_alike = positions
        return positions

    def keep_earlier(self) -> None:
        self.memory.keep_earlier()

    def take_back(self) -> None:
        """Undo the last `compress`, `aggregate` or `move_on`."""
        self.memory.swap()
        for stream in self._streams:
            stream.take_back()

    def _states(self) -> tuple[list[NDArray], dict[str, int]]:
        """The arrays that an operator writes and reads, and the attributes that count them."""
        arrays, earlier = self.memory.arrays, self.memory.earlier
        return [*arrays, *earlier], dict(states=len(arrays), earlier=int(bool(earlier)))

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._configure()

    def compress(
        self,
        gradients: Sequence[NDArray],
        offsets: Offsets,
        scale: float = 1.0,
        ratio: float = 1.0,
        framing: Mapping[str, Any] | None = None,
        out: NDArray | None = None,
        factor: NDArray | None = None,
        step: int = 0,
    ) -> NDArray:
        """Make a message of scale * gradients, after momentum and error feedback.

        `offsets` has, for each chunk, the index of its gradient and its offset there. `ratio` is
        previous / current learning rate. `framing` are the rows to write; without it, payloads are
        side by side. `factor` (float64, shape (1,)) also multiplies the gradients. `step` counts
        from 1, for the meter.
        """
        positions = self.move_on()
        framing, meters = framing or {}, (self.meter,)
        rows, target = framing, out
        if self._gpu:  # GPU operators have no meter and no framing; `_packed` does both
            rows, meters, target = {}, (), None
        factors = () if factor is None else (factor.as_in_context(self._gpu or mx.cpu()),)
        states, counts = self._states()
        layout = dict(**counts, metered=len(meters), clipped=len(factors), **rows)
        values = dict(scale=float(scale), ratio=float(ratio), step=step)
        message = operators.call(
            "compress",
            (*states, *meters, *gradients, *factors),
            target,
            **self._options,
            **self._attribute("compress", layout, len(gradients), offsets, **values),
            **positions,
        )
        return self._packed(message, framing, out, step) if self._gpu else message

    def aggregate(
        self,
        messages: NDArray,
        count: int,
        threads: int = 1,
        framing: Mapping[str, Any] | None = None,
    ) -> NDArray:
        """Sum `count` messages in their order; return the sum's message, after error feedback."""
        self.memory.swap()
        states, counts = self._states()
        layout = dict(**counts, count=count, threads=threads, **framing or {})
        return operators.call(
            "aggregate",
            (messages, *states),
            **self._options,
            **self._attribute("aggregate", layout),
            **self._positions(),
        )

    def decompress(
        self,
        messages: Sequence[NDArray],
        gradients: Sequence[NDArray],
        offsets: Offsets,
        count: int = 1,
        framing: Mapping[str, Any] | None = None,
        unit: float = 1.0,
    ) -> None:
        """Write the sum of `count` messages to the gradients; see `compress`.

        In float16 gradients, the sum is divided by `unit` before it is rounded.
        """
        layout = dict(arrays=len(messages), count=count, metered=1, **framing or {})
        values = {} if unit == 1.0 else {"half_scale": 1 / unit}
        meter, refused = self.meter, self._refused
        if self._gpu:
            messages = [self._unpacked(messages, layout).as_in_context(self._gpu)]
            layout, meter, refused = dict(arrays=1, count=count, metered=0), None, {}
        operators.call(
            "decompress",
            (*messages, *gradients),
            meter,
            **self._options,
            **self._attribute("decompress", layout, len(gradients), offsets, **values),
            **self._drawn_alike,
            **refused,
        )

    @cached_property
    def _unread(self) -> NDArray:
        """A meter that nobody reads, because another meter counts these messages."""
        return operators.new_meter()

    def unframed(
        self, messages: Sequence[NDArray], out: NDArray, framing: Mapping[str, Any]
    ) -> None:
        """Write the payloads of framed messages side by side to `out`, uint8."""
        layout = dict(arrays=len(messages), count=out.size // self.payload_bytes, **framing)
        inputs = (*messages, self._unread)
        operators.call("unpack", inputs, out, **self._options, **self._attribute("unpack", layout))

    # Gradients on a GPU: payloads are copied through pinned memory

    @cached_property
    def runs_on_gpu(self) -> bool:
        """Whether `move_to` a GPU is possible. If kernels are missing, the log says why, once."""
        return self._params.compressor.runs_on_gpu()

    def move_to(self, gpu: mx.Context | None) -> None:
        """Expect gradients on this GPU from now on, or on the CPU if None."""
        self._gpu = gpu
        self.memory.move_to(gpu)

    def _packed(
        self, payloads: NDArray, framing: Mapping[str, Any], out: NDArray | None, step: int
    ) -> NDArray:
        host = self._pinned_memory("sent", payloads.size, payloads.dtype)
        payloads.copyto(host)
        message = self._attribute("pack", framing, step=step)
        return operators.call("pack", (self.meter, host), out, **self._options, **message)

    def _unpacked(self, messages: Sequence[NDArray], layout: Mapping[str, Any]) -> NDArray:
        """The checked payloads of messages, in pinned memory."""
        host = self._pinned_memory("received", layout["count"] * self.payload_bytes, np.uint8)
        inputs, message = (*messages, self.meter), self._attribute("unpack", layout)
        return operators.call("unpack", inputs, host, **self._options, **message, **self._refused)

    def _pinned_memory(self, name: str, size: int, dtype: Any) -> NDArray:
        """Pinned memory, which GPUs copy without the CPU; the same array each time."""
        if name not in self._pinned or self._pinned[name].size != size:
            self._pinned[name] = mx.nd.empty(size, mx.cpu_pinned(), dtype)
        return self._pinned[name]

    def layouts(self) -> list[kernels.Layout]:
        return [codec.saved_layout() for codec in self.codecs]

    def state(self) -> list[dict[str, np.ndarray]]:
        """For a checkpoint, each chunk's "stream", "residual" and "momentum", if it has them."""
        states = self.memory.saved(self.codecs)
        if self._params.compressor.traits.draws:
            states = [{"stream": s.state(), **saved} for s, saved in zip(self._streams, states)]
        return states

    @property
    def keeps_residual(self) -> bool:
        return any(codec.memory for codec in self.codecs)

    def residual_norms(self) -> Callable[[], list[float]]:
        """Copy the residuals as they are now. The result waits, and returns each chunk's norm."""
        copies, codecs = [array.copy() for array in self.memory.arrays], self.codecs

        def norms() -> list[float]:
            arrays = [copy.asnumpy() for copy in copies]
            states = zip(codecs, self.memory.of_chunks(codecs, arrays))
            residuals = [codec.residual(kept) if codec.memory else None for codec, kept in states]
            return [0.0 if r is None else math.sqrt(kernels.sum_of_squares(r)) for r in residuals]

        return norms

    def load_state(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.memory.load(self.codecs, states)
        if self._params.compressor.traits.draws:
            for stream, state in zip(self._streams, states):
                stream.load_state(state["stream"])


class MessageMemory:
    """Residuals and momentum of a message's chunks; each array has the parts of all chunks.

    A part takes whole cache lines, as operators/mxnet/chunks.h expects.

    If steps may be taken back, there are two sets of arrays: a step reads one and writes the other.
    """

    def __init__(self, codecs: Sequence[kernels.Codec], dtype: str) -> None:
        sizes = [[codec.momentum for codec in codecs]]
        sizes += [list(memory) for memory in zip(*(codec.memory for codec in codecs))]
        self._sizes = [chunk_sizes for chunk_sizes in sizes if any(chunk_sizes)]
        self._dtype = dtype
        line = _CACHE_LINE_BYTES // np.dtype(dtype).itemsize
        ends = [np.cumsum([-(-size // line) * line for size in sizes]) for sizes in self._sizes]
        self._begins = [[0, *end[:-1]] for end in ends]
        self._ends = np.cumsum([end[-1] for end in ends], dtype=int)  # of the arrays
        self.arrays = self._in(self._zeros())
        self.earlier: list[NDArray] = []

    @property
    def num_bytes(self) -> int:
        return int(self._ends[-1]) * np.dtype(self._dtype).itemsize if self._sizes else 0

    def use(self, memory: np.ndarray) -> None:
        """Use this memory for the arrays from now on: `num_bytes` zeros, uint8, on the CPU."""
        self.arrays = self._in(memory)

    def _zeros(self) -> np.ndarray:
        return kernels.aligned_zeros(self.num_bytes, np.uint8)

    def _in(self, memory: np.ndarray) -> list[NDArray]:
        pieces = np.split(memory.view(self._dtype), self._ends[:-1]) if self._sizes else []
        return [as_ndarray(piece) for piece in pieces]

    def move_to(self, gpu: mx.Context | None) -> None:
        context = gpu or mx.cpu()
        self.arrays = [array.as_in_context(context) for array in self.arrays]
        self.earlier = [array.as_in_context(context) for array in self.earlier]

    def keep_earlier(self, memory: np.ndarray | None = None) -> None:
        """Keep the state before each step from now on, in this memory if it is given."""
        earlier = self._in(self._zeros() if memory is None else memory)
        self.earlier = [e.as_in_context(now.context) for e, now in zip(earlier, self.arrays)]

    def swap(self) -> None:
        """Make the earlier state the current one: to begin a step, and to take it back."""
        if self.earlier:
            self.arrays, self.earlier = self.earlier, self.arrays

    def saved(self, codecs: Sequence[kernels.Codec]) -> list[dict[str, np.ndarray]]:
        """For a checkpoint, each chunk's "residual" and "momentum", if it has them."""
        states = []
        for codec, kept in zip(codecs, self.of_chunks(codecs, self._as_numpy())):
            state = {}
            if codec.memory:
                state["residual"] = codec.residual(kept)
            if codec.momentum:
                state["momentum"] = kept.momentum.copy()
            states.append(state)
        return states

    def load(
        self, codecs: Sequence[kernels.Codec], states: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        arrays = self._as_numpy()
        for codec, kept, state in zip(codecs, self.of_chunks(codecs, arrays), states):
            if codec.memory:
                codec.restore(kept, np.ascontiguousarray(state["residual"]))
            if codec.momentum:
                kept.momentum[:] = state["momentum"]
        for array, values in zip(self.arrays, arrays):
            array[:] = values

    def _as_numpy(self) -> list[np.ndarray]:
        return [array.asnumpy() for array in self.arrays]

    def of_chunks(
        self, codecs: Sequence[kernels.Codec], arrays: Sequence[np.ndarray]
    ) -> Iterator[kernels.State]:
        for i, codec in enumerate(codecs):
            of_arrays = zip(arrays, self._begins, self._sizes)
            parts = [array[begins[i] :][: sizes[i]] for array, begins, sizes in of_arrays]
            momentum = parts.pop(0) if codec.momentum else None
            yield kernels.State(momentum, tuple(parts))
