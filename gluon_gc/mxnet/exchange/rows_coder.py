"""Compresses and decompresses row-sparse gradients, with a residual for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ... import kernels
from ...compression import CompressionParams
from ...compression.stream import Stream
from ..engine import operators
from ..engine.operators import MessageRows, Offsets
from .coder import Part


@dataclass(frozen=True)
class Payload:
    """The size of a payload: a list of rows, then the payload of their values."""

    payload_bytes: int

    @staticmethod
    def used(payload: np.ndarray) -> int:
        return int(payload[:4].view(np.uint32)[0])


class RowsCoder:
    """A `MessageCoder` of one gradient whose rows change from step to step.

    The residual of a row is added when the gradient has that row again. The random stream advances
    by the draws of all rows, so that later draws do not depend on the rows of a step.
    """

    runs_on_gpu = False

    def __init__(self, params: CompressionParams, rows: int, part: Part) -> None:
        whole = params.codec(part.size, "float32")
        shape = rows, part.size // rows
        self._params, self._shape = params, shape
        self._stream, self._draws = Stream(part.start), whole.draws
        self._drawn_alike: dict[str, str] = {}
        self._residual = [mx.nd.zeros(shape)] if params.ef else []
        self._keeps_earlier = False
        self._earlier: Callable[[], None] = lambda: None  # undoes the last change of the residual
        self.meter = operators.new_meter()
        self.payload_bytes = kernels.rows_head_bytes(rows) + whole.payload_bytes
        self.codecs = [Payload(self.payload_bytes)]
        self._options = {"options": kernels.as_text(params.options())}
        self._attribute = operators.MessageAttribute(
            compressor=params.compressor.name,
            shape=operators.listed(shape),
            payload_bytes=self.payload_bytes,
        )
        self._refused = operators.refusing([part.refused])

    def rows(self) -> MessageRows:
        return MessageRows(((self.payload_bytes, 0),))

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: only compressors that accumulate use the epoch."""

    def keep_earlier(self) -> None:
        self._keeps_earlier = True

    def take_back(self) -> None:
        self._stream.take_back()
        self._earlier()
        self._earlier = lambda: None

    def _keep(self, gradient: RowSparseNDArray, ratio: float) -> None:
        """Multiply the residual by a ratio, and keep what `take_back` needs of it."""
        (residual,) = self._residual
        if ratio != 1.0:
            self._residual = [residual * ratio]
            self._earlier = lambda: self._residual.__setitem__(0, residual)
            return
        rows = gradient.indices
        if not rows.size:
            self._earlier = lambda: None
            return
        kept = mx.nd.take(residual, rows)
        self._earlier = lambda: residual.__setitem__(rows, kept)

    def _position(self) -> dict[str, str]:
        """The position of the random stream, which then advances."""
        if not self._params.compressor.traits.draws:
            return {}
        return {"positions": operators.listed(self._stream.take(self._draws))}

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
        """As `MessageCoder.compress`. The ratio also multiplies residuals of absent rows."""
        (gradient,) = gradients
        if not self._params.follows_rates:
            ratio = 1.0
        if self._residual and self._keeps_earlier:
            self._keep(gradient, ratio)
        elif ratio != 1.0:
            for residual in self._residual:
                residual *= ratio
        position = self._position()
        if self._params.compressor.traits.draws_alike:
            self._drawn_alike = position
        factors = () if factor is None else (factor.as_in_context(mx.cpu()),)
        layout = dict(feedback=len(self._residual), clipped=len(factors), **framing or {})
        return operators.call(
            "rows_compress",
            (*self._residual, self.meter, gradient, *factors),
            out,
            **self._options,
            **self._attribute("rows_compress", layout, scale=float(scale), step=step),
            **position,
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
        """Write the sum of `count` messages to the gradient, which gets the rows of all of them."""
        layout = dict(arrays=len(messages), count=count, **framing or {})
        (gradient,) = gradients
        operators.call(
            "rows_decompress",
            (*messages, self.meter),
            gradient,
            **self._options,
            **self._attribute("rows_decompress", layout),
            **self._drawn_alike,
            **self._refused,
        )

    def state(self) -> list[dict[str, np.ndarray]]:
        state = {}
        if self._params.compressor.traits.draws:
            state["stream"] = self._stream.state()
        for residual in self._residual:
            state["residual"] = residual.asnumpy().ravel()
        return [state]

    def load_state(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        (state,) = states
        if self._params.compressor.traits.draws:
            self._stream.load_state(state["stream"])
        for residual in self._residual:
            residual[:] = state["residual"].reshape(self._shape)
