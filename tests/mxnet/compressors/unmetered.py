"""The codecs' operators on any device, without a meter."""

from __future__ import annotations

import itertools
from typing import Any

import mxnet as mx
import numpy as np

from gluon_gc import kernels
from gluon_gc.mxnet.engine import operators
from gluon_gc.mxnet.exchange.coder import MessageMemory

SCALE = 1 / 3


class Node:
    """The codecs of a `test_message_coder.Message` on a device.

    `more` are codec options that compression_params do not have.
    """

    def __init__(self, message: Any, context: mx.Context, **more: Any) -> None:
        self.message, self.context, params = message, context, message.params
        name, options = params.compressor.name, {**params.options(message.epoch), **more}
        self.codecs = [kernels.Codec(name, options, n, message.work) for n in message.sizes]
        memory = MessageMemory(self.codecs, message.work)
        self.states = [array.as_in_context(context) for array in memory.arrays]
        self.count = sum(codec.payload_bytes for codec in self.codecs)
        self._attribute = operators.MessageAttribute(
            compressor=name,
            dtype=message.work,
            sizes=operators.listed(message.sizes),
            payload_bytes=self.count,
            summable=self.codecs[0].traits.summable,
            metered=0,
        )
        self._options = {"options": kernels.as_text(options)}
        self._drawn, self._positions = 0, {}

    def array(self, values: np.ndarray) -> mx.nd.NDArray:
        return mx.nd.array(values, ctx=self.context, dtype=values.dtype)

    def _draw(self) -> dict[str, str]:
        """Return the positions in the random streams for the next call."""
        if self.message.params.compressor.traits.draws:
            pairs = zip(self.message.starts(0), self.codecs)
            words = [(*start, self._drawn * codec.draws) for start, codec in pairs]
            self._positions = {"positions": operators.listed(itertools.chain(*words))}
        self._drawn += 1
        return self._positions

    def compress(
        self, gradients: list[np.ndarray], ratio: float = 1.0, factor: float | None = None
    ) -> mx.nd.NDArray:
        factors = [] if factor is None else [self.array(np.array([factor]))]
        attributes = dict(states=len(self.states), clipped=len(factors))
        now = dict(scale=SCALE, ratio=ratio)
        return operators.call(
            "compress",
            (*self.states, *map(self.array, gradients), *factors),
            **self._options,
            **self._attribute("compress", attributes, len(gradients), self.message.offsets, **now),
            **self._draw(),
        )

    def aggregate(self, messages: np.ndarray) -> mx.nd.NDArray:
        attributes = dict(states=len(self.states), count=len(messages))
        return operators.call(
            "aggregate",
            (self.array(messages), *self.states),
            **self._options,
            **self._attribute("aggregate", attributes),
            **self._draw(),
        )

    def decompress(self, messages: np.ndarray, count: int) -> list[np.ndarray]:
        """Return gradients that contained 7 before, and the chunks' statuses."""
        results = [self.array(np.full_like(one, 7)) for one in self.message.gradients(0)]
        attributes = dict(arrays=1, count=count)
        statuses = operators.call(
            "decompress",
            (self.array(messages), *results),
            **self._options,
            **self._attribute("decompress", attributes, len(results), self.message.offsets),
            **self._positions,
        )
        assert statuses.context == self.context
        return [array.asnumpy() for array in (*results, statuses)]

    def kept(self) -> list[bytes]:
        return [state.asnumpy().tobytes() for state in self.states]
