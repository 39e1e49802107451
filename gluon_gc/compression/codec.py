"""A compressor at work on one chunk: with its error feedback, its momentum, and their state."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .. import operators
from .params import CompressionParams
from .stream import State


class Codec:
    """Compresses and decompresses the gradients of one chunk, step after step.

    Parameters
    ----------
    params : CompressionParams
        With a compressor.
    n : int
        Number of elements.
    dtype : str
        "float32" or "float64": of the gradient, the arithmetic and the state.
    start : tuple of two int, optional
        Where the random stream starts, for a compressor that draws.
    refused : str
        If given, what decompresses to a NaN or an infinity is an error that calls it so.
    """

    def __init__(
        self,
        params: CompressionParams,
        n: int,
        dtype: str,
        start: Optional[State] = None,
        refused: str = "",
    ) -> None:
        self._compressor = params.compressor
        self._name = params.compressor.name
        self._n = n
        self._refused = refused
        self._decoding = dict(params.compressor.attributes(n), dtype=dtype)
        self._encoding = dict(self._decoding)
        self._momentum: Optional[NDArray] = None
        self._memory: List[NDArray] = []
        if params.ef:
            self._decoding["ef"] = self._encoding["ef"] = params.ef
            sizes = params.compressor.memory_sizes(n, np.dtype(dtype).itemsize)
            self._memory = [mx.nd.zeros(size, dtype=dtype) for size in sizes]
        if params.mu is not None:
            self._encoding["mu"] = repr(params.mu)
            self._momentum = mx.nd.zeros(n, dtype=dtype)
        if params.compressor.accumulates:
            self._encoding["nesterov"] = params.nesterov
        self._meter = mx.nd.zeros(len(operators.METER), dtype="float64")
        self._stream: List[NDArray] = []
        if params.compressor.draws:
            self._stream = [_stream_array(start)]
        self.payload_bytes = params.payload_bytes(n, dtype)

    def set_epoch(self, epoch: int) -> None:
        """Compress as the compressor does in an epoch, counted from 0."""
        self._encoding.update(self._compressor.attributes(self._n, epoch))

    @property
    def _state(self) -> List[NDArray]:
        momentum = [] if self._momentum is None else [self._momentum]
        return self._stream + momentum + self._memory

    def compress(self, gradient: NDArray, scale: float = 1.0, ratio: float = 1.0) -> NDArray:
        """The payload of scale * gradient, shape (n,), after momentum and feedback.

        `ratio` is the previous learning rate over the current one, for corrected feedback.
        """
        if self._encoding.get("ef") != "corrected":
            ratio = 1.0
        return operators.compress(
            self._name, gradient, self._meter, self._state, self._encoding, scale, ratio
        )

    def aggregate(self, payloads: NDArray, threads: int = 1) -> NDArray:
        """The payload of the sum of all workers' payloads, shape (workers, payload_bytes)."""
        return operators.aggregate(
            self._name, payloads, self._state, self._encoding, self._n, threads
        )

    def decompress(self, payload: NDArray, out: Optional[NDArray] = None) -> NDArray:
        """The n elements of a payload, in `out` if given; of several, the sum in row order."""
        return operators.decompress(
            self._name,
            payload,
            self._meter,
            self._stream,
            self._decoding,
            self._n,
            out,
            self._refused,
        )

    def meter(self) -> Dict[str, float]:
        """What was done so far; waits until it is."""
        return dict(zip(operators.METER, self._meter.asnumpy().tolist()))

    def state(self) -> Dict[str, np.ndarray]:
        """What a checkpoint keeps: "stream", "residual" and "momentum", where there are any."""
        state = {}
        if self._stream:
            state["stream"] = self._stream[0].asnumpy()[1].view(np.uint64)
        if self._memory:
            state["residual"] = operators.residual(
                self._name, self._memory, self._decoding
            ).asnumpy()
        if self._momentum is not None:
            state["momentum"] = self._momentum.asnumpy()
        return state

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned, whose arrays are as `state_layout` says."""
        if self._stream:
            self._stream = [_stream_array(state["stream"])]
        if self._memory:
            residual = mx.nd.array(state["residual"], dtype=state["residual"].dtype)
            self._compressor.restore(self._memory, residual)
        if self._momentum is not None:
            self._momentum[:] = state["momentum"]


def state_layout(
    params: CompressionParams, n: int, dtype: str
) -> Dict[str, Tuple[Tuple[int, ...], str]]:
    """Shape and dtype of each array in the state of a Codec that is made with these arguments."""
    layout: Dict[str, Tuple[Tuple[int, ...], str]] = {}
    if params.compressor.draws:
        layout["stream"] = (2,), "uint64"
    if params.ef:
        layout["residual"] = (n,), dtype
    if params.mu is not None:
        layout["momentum"] = (n,), dtype
    return layout


def _stream_array(start: Sequence[int]) -> NDArray:
    """The stream as it was before the last compress, and as it is."""
    return mx.nd.array(np.array([start, start], np.uint64).view(np.int64), dtype="int64")
