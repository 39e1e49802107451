"""What one node does with one compressed chunk, step after step: a codec and what it carries over."""

from __future__ import annotations

from typing import Dict, Mapping, Optional

import numpy as np

from .. import kernels
from ..compression import CompressionParams
from ..compression.stream import State, Stream


class Coder:
    """Compresses, aggregates and decodes n elements; keeps residual, momentum and random stream.

    Parameters
    ----------
    params : CompressionParams
        With a compressor.
    n : int
        Number of elements.
    dtype : "float32" or "float64"
        Of the arithmetic and the state.
    start : State, optional
        Where its random stream starts, for a compressor that draws.
    """

    def __init__(
        self, params: CompressionParams, n: int, dtype: str, start: Optional[State]
    ) -> None:
        self._params, self._n, self._dtype = params, n, dtype
        self._stream = Stream(start)
        self.set_epoch(None)
        self._carried = self.codec.state()
        self._drawn = kernels.position()  # where those draw who draw alike

    def set_epoch(self, epoch: Optional[int]) -> None:
        """Compress as in an epoch, counted from 0."""
        self.codec = self._params.codec(self._n, self._dtype, epoch)

    def compress(
        self, values: np.ndarray, scale: float, ratio: float, payload: np.ndarray
    ) -> int:
        """Make a payload of scale * values, after momentum and feedback; its bytes.

        Parameters
        ----------
        values : array of dtype, shape (n,)
        scale : float
        ratio : float
            Previous learning rate over the current one, for feedback that is not "vanilla".
        payload : array of uint8, shape (payload_bytes,)
            Where to write.
        """
        position = self._draws()
        _, status = self.codec.compress(
            values, self._carried, position, scale=scale, ratio=ratio, payload=payload
        )
        if self.codec.traits.draws_alike:
            self._drawn = position
        return status.bytes

    def aggregate(self, payloads: np.ndarray, payload: np.ndarray) -> int:
        """Make a payload of the sum of those in rows, after feedback; its bytes."""
        _, status = self.codec.aggregate(payloads, self._carried, self._draws(), payload=payload)
        return status.bytes

    def decompress(self, payloads: np.ndarray, values: np.ndarray) -> bool:
        """Write the sum of what rows decode to; whether it is finite."""
        _, status = self.codec.decompress(payloads, self._drawn, out=values)
        return bool(status.finite)

    def _draws(self) -> kernels.Position:
        *state, drawn = self._stream.take(self.codec.draws)
        return kernels.position(state, drawn)

    # Checkpoints

    def state(self) -> Dict[str, np.ndarray]:
        """What it carries over: "residual" and "momentum", shape (n,), and "stream", shape (2,)."""
        state = {}
        if self.codec.traits.draws:
            state["stream"] = self._stream.state()
        if self.codec.memory:
            state["residual"] = self.codec.residual(self._carried)
        if self.codec.momentum:
            state["momentum"] = self._carried.momentum.copy()
        return state

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        if self.codec.traits.draws:
            self._stream.load_state(state["stream"])
        if self.codec.memory:
            self.codec.restore(self._carried, np.ascontiguousarray(state["residual"]))
        if self.codec.momentum:
            self._carried.momentum[:] = state["momentum"]
