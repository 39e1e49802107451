"""Coder: the codec of one compressed chunk, with its residual, momentum and random stream."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any, Callable, Iterable, Mapping, Tuple

import numpy as np

from .. import kernels
from ..compression import CompressionParams
from ..compression import stream as streams
from .plan import Chunk

_ENTROPY_BYTES = 16
_Before = Tuple[int, int]
"""The number of a copy of the state, and the draws from the random stream at that time."""


class Coder:
    """The codec of n elements, with its residual, momentum and random stream.

    `start` is the start of the random stream; None if the compressor draws no random numbers.
    `device` is the GPU that compresses; None: the CPU. A call reads one copy of the state and
    writes another, so that it can be taken back. `decodes_only`: the coder has no state.
    """

    device: Any = None

    def __init__(
        self,
        params: CompressionParams,
        n: int,
        dtype: str,
        start: streams.State | None = None,
        decodes_only: bool = False,
    ) -> None:
        self._params, self._n, self._dtype = params, n, dtype
        self._stream = streams.Stream(start)
        self._epoch: int | None = None
        self.set_epoch(None)
        self._copies: list[Any] = []  # of the state; others than the current one are earlier states
        self._references: list[kernels.StateReference] = []  # to the copies
        self._has_foreign_memory = False
        if not decodes_only:
            self._now = self._add_copy()
        self._before: _Before | None = None  # `take_back` returns there
        self._last: _Before | None = None  # `take_back_last` returns there

    def set_epoch(self, epoch: int | None) -> None:
        """Set the epoch, counted from 0; None: compress as after the warm-up."""
        self._epoch = epoch
        self.codec = self._params.codec(self._n, self._dtype, epoch)

    def set_momentum(self, mu: float) -> None:
        """Set the coefficient of momentum, if the coder applies any."""
        before = self._params.mu
        if before is None or before == mu:
            return
        self._params = replace(self._params, mu=mu)
        self._set_options(self._params.options(self._epoch))
        if self._momentum_has_mu:
            state = self._in_host_memory(self._now)
            state.momentum[:] *= mu / before
            self._write(state)

    def _set_options(self, options: Mapping[str, Any]) -> None:
        self.codec.set_options(options)

    @property
    def _momentum_has_mu(self) -> bool:
        """Whether the momentum array is multiplied by mu already: dgc's form of Nesterov's."""
        return self.codec.traits.accumulates and self._params.nesterov

    def replace_momentum(self, values: np.ndarray) -> None:
        """Continue with these values, shape (n,), as the momentum."""
        state = self._in_host_memory(self._now)
        state.momentum[:] = values * (self._params.mu if self._momentum_has_mu else 1)
        self._write(state)

    @property
    def has_fixed_length(self) -> bool:
        """Whether all payloads have the same length."""
        return self.codec.length_at is None or self._params.compressor.full

    def calls(self, undone: bool = False) -> int:
        """Return the number of calls that have drawn random numbers from the stream's start.

        `undone`: as after `take_back`.
        """
        drawn = self._before[1] if undone and self._before is not None else self._stream.drawn
        return drawn // self.codec.draws if self.codec.draws else 0

    def skip(self, calls: int) -> None:
        """Advance the random stream by the draws of this number of calls."""
        self._stream.drawn += calls * self.codec.draws

    def take_draws(self) -> kernels.Position:
        """Return the position of the next call in the random stream, and advance the stream."""
        *state, drawn = self._stream.take(self.codec.draws)
        return kernels.position(state, drawn)

    def in_place(self) -> kernels.StateOfCall:
        """Return the state for a call that cannot be taken back."""
        return self._references[self._now].in_place

    def turn(self, continues: bool) -> kernels.StateOfCall:
        """Return the state for a call that can be taken back.

        If it continues the last calls, `take_back` undoes them, too.
        """
        now, count = self._now, len(self._copies)
        self._last = now, self._stream.drawn
        if not continues or self._before is None:
            self._before = self._last
        if self._has_foreign_memory:
            return self.in_place()
        kept = self._before[0]
        free = (now + 1) % count
        if free == kept:
            free = (kept + 1) % count
        self._now = self._add_copy() if free in (now, kept) else free
        return self._references[self._now].after(self._references[now])

    def take_back(self) -> None:
        """Return to the state before the last `turn` that did not continue another."""
        self._return_to(self._before)

    def take_back_last(self) -> None:
        """Return to the state before the last `turn`."""
        self._return_to(self._last)

    def _return_to(self, before: _Before) -> None:
        self._now, self._stream.drawn = before

    def _add_copy(self) -> int:
        """Allocate memory for a copy of the state, and return its number."""
        state = self.codec.state()
        self._copies.append(state)
        return self._refer_to(kernels.addresses(self.codec, state))

    def _refer_to(self, addresses: kernels.StateAddresses) -> int:
        self._references.append(kernels.StateReference(addresses))
        return len(self._references) - 1

    def _in_host_memory(self, number: int) -> kernels.State:
        """Return a copy of the state in the codec's own form, perhaps the copy itself."""
        return self._copies[number]

    def _write(self, state: kernels.State) -> None:
        """Replace the current copy, which `_in_host_memory` returned."""

    def use_memory(self, memory: np.ndarray) -> None:
        """Let error feedback keep its only array in this memory, shape (codec.memory[0],).

        `take_back` then returns the random stream only: the caller takes back the array.
        """
        self._has_foreign_memory = True
        (state,) = self._copies
        self._copies = [kernels.State(state.momentum, (memory,))]
        addresses = kernels.addresses(self.codec, self._copies[0])
        self._references = [kernels.StateReference(addresses)]

    def residual_norm(self) -> float:
        """Return the norm of the residual; 0 without error feedback."""
        if not self.codec.memory:
            return 0.0
        residual = self.codec.residual(self._in_host_memory(self._now))
        return math.sqrt(kernels.sum_of_squares(residual))

    # Checkpoints

    def state(self, undone: bool = False) -> dict[str, np.ndarray]:
        """Return the arrays for a checkpoint.

        They are "residual" and "momentum", shape (n,), and "stream", shape (2,).

        `undone`: as they would be after `take_back`.
        """
        before = self._before if undone else None
        number, drawn = before or (self._now, None)
        kept, state = self._in_host_memory(number), {}
        if self.codec.traits.draws:
            state["stream"] = self._stream.state(drawn)
        if self.codec.memory:
            state["residual"] = self.codec.residual(kept)
        if self.codec.momentum:
            state["momentum"] = kept.momentum.copy()
        return state

    def stream_state(self) -> np.ndarray:
        """Return the state of the random stream, shape (2,)."""
        return self._stream.state()

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from the result of `state`."""
        if self.codec.traits.draws:
            self._stream.load_state(state["stream"])
        kept = self._in_host_memory(self._now)
        if self.codec.memory:
            self.codec.restore(kept, np.ascontiguousarray(state["residual"]))
        if self.codec.momentum:
            kept.momentum[:] = state["momentum"]
        self._write(kept)


def new_entropy() -> bytes:
    """Return random bytes from which streams without a seed can be derived."""
    return os.urandom(_ENTROPY_BYTES)


def needs_entropy(several: Iterable[CompressionParams | None]) -> bool:
    """Return whether a compressor draws random numbers without a seed. None: no compression."""
    compressors = {params.compressor for params in several if params is not None} - {None}
    return any(c.traits.draws and c.seed is None for c in compressors)


class StreamStarts:
    """Computes the initial state of each chunk's random streams.

    Streams without a seed are derived from random bytes, `entropy`. By default, these are rank 0's.
    `of_root` takes this worker's bytes and returns those of rank 0. All workers call it together.
    """

    def __init__(self, of_root: Callable[[bytes], bytes]) -> None:
        self._of_root, self.entropy = of_root, b""

    def draw(self, chunks: Iterable[Chunk]) -> None:
        """Get rank 0's random bytes if a chunk is the first to need them. All workers call this."""
        several = [chunk.params for chunk in chunks if chunk.params is not None]
        several += [params.inner for params in several if params.inner is not None]
        if not self.entropy and needs_entropy(several):
            self.entropy = self._of_root(new_entropy())

    def start(self, chunk: Chunk, node: int | None, index: int, begin: int) -> streams.State | None:
        """The initial state of a node's stream for a chunk. None if its compressor does not draw.

        `draw` must have been called with the chunk before. `node` is the rank of a worker, or None
        for the aggregator. `index` is the parameter's position in its trainer, and `begin` the
        first element of the chunk in the parameter.
        """
        if not chunk.params.compressor.traits.draws:
            return None
        return streams.start(chunk.params, chunk.size, node, index, begin, self.entropy)
