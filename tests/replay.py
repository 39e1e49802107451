"""The exchange in NumPy, with the compressors' replays as workers and server."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np

from gluon_gc import kernels
from gluon_gc.compression import CompressionParams, parse
from tests.neutral.compressors.cases import tests_of

WORD = 2**64
State = Tuple[int, int]
Rows = Tuple[List[int], np.ndarray]
"""The indices of rows, and their values."""


def draws(a: int, b: int) -> Iterator[int]:
    """Yield the draws of xorshift128+ (shifts 23, 17 and 26) from state (a, b)."""
    while True:
        t = a ^ (a << 23) % WORD
        a = b
        b = t ^ (t >> 17) ^ a ^ (a >> 26)
        yield (a + b) % WORD


def own_start(seed: int, index: int, node: int) -> State:
    """Return where a node's own stream for parameter `index` starts."""
    state = np.full(2, seed + index, np.uint64)
    kernels.jump_to_worker(state, node)
    return state[0].item(), state[1].item()


def start_of(params: CompressionParams, n: int, index: int, node: int) -> State:
    """Return where a node's stream starts for n elements of parameter `index`; 0 without draws."""
    compressor = params.compressor
    if not compressor.traits.draws:
        return 0, 0
    if compressor.traits.draws_alike:
        seed = compressor.seed + index + params.codec(n, "float32").draws
        return seed, seed
    return own_start(compressor.seed, index, node)


class Exchange:
    """All workers, and the server if there is one, for n elements of parameter `index`."""

    def __init__(
        self, workers: int, params: CompressionParams, n: int, index: int, dtype: Any
    ) -> None:
        def node(params: CompressionParams, number: int) -> Any:
            start = start_of(params, n, index, number)
            return tests_of(params.compressor.name).Replay(params.options(), n, dtype, start)

        self.workers = [node(params, rank) for rank in range(workers)]
        self.server = None
        if not params.compressor.traits.summable and params.exchange != "gather":
            repeats = params.compressor.name == "dithering"  # the random numbers of worker 0
            self.server = node(params.aggregators, 0 if repeats else 2**32)

    @property
    def nodes(self) -> list[Any]:
        """All nodes that have state."""
        return self.workers if self.server is None else [*self.workers, self.server]

    def step(
        self, gradients: Sequence[np.ndarray], ratio: float, order: Sequence[int]
    ) -> np.ndarray:
        """Return the gradient that all workers get; `gradients` are by rank, summed in `order`."""
        nodes = zip(self.workers, gradients)
        decoded = [worker.step(g, ratio=ratio)[1] for worker, g in nodes]
        total = decoded[order[0]]
        for rank in order[1:]:
            total = total + decoded[rank]
        return total if self.server is None else self.server.step(total, ratio=ratio)[1]


def cut_anew(
    before: Sequence[Exchange],
    parts: Sequence[slice],
    after: Sequence[Exchange],
    now: Sequence[slice],
) -> None:
    """Give exchanges the state of others that cut the tensor into different parts."""
    for number in range(len(before[0].nodes)):
        nodes = [exchange.nodes[number] for exchange in before]
        for exchange, part in zip(after, now):
            node = exchange.nodes[number]
            for name in ("residual", "momentum"):
                if getattr(node, name) is not None:
                    whole = np.concatenate([getattr(one, name) for one in nodes])
                    setattr(node, name, whole[part])
            ((first, old),) = [
                pair for pair in zip(nodes, parts) if pair[1].start <= part.start < pair[1].stop
            ]
            state = np.array(first.start, np.uint64)
            kernels.jump(state, first.drawn)
            kernels.jump(state, (part.start - old.start) * 2**32)
            node.start = tuple(state.tolist())


class RowsExchange:
    """All workers, for a row-sparse gradient of a float32 matrix. `residuals` are by rank."""

    def __init__(
        self, workers: int, params: CompressionParams, shape: tuple[int, int], index: int
    ) -> None:
        n = shape[0] * shape[1]
        self.residuals = [np.zeros(shape, np.float32) for _ in range(workers)]
        self._params = params
        self._starts = [start_of(params, n, index, rank) for rank in range(workers)]
        self._drawn, self._draws = 0, params.codec(n, "float32").draws

    def step(
        self, gradients: Sequence[Rows], scale: float, ratio: float, order: Sequence[int]
    ) -> tuple[np.ndarray, list[int]]:
        """Return the gradient that all workers get, summed in `order`, and each worker's bytes."""
        total = np.zeros_like(self.residuals[0])
        lengths = [0] * len(gradients)
        for rank in order:
            ids, values = gradients[rank]
            if self._params.ef != "vanilla":
                self.residuals[rank] *= np.float32(ratio)
            payload, decoded = self._worker(rank, ids, values, scale)
            total[ids] += decoded
            header = 8 if self._has_header else 0
            lengths[rank] = 4 * (2 + len(ids)) + header + payload.size
        self._drawn += self._draws
        return total, lengths

    def _worker(
        self, rank: int, ids: list[int], values: np.ndarray, scale: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a worker's payload for these rows, and the decoded rows."""
        params = self._params
        replay = tests_of(params.compressor.name).Replay(
            params.options(), values.size, np.float32, self._starts[rank]
        )
        replay.drawn = self._drawn
        if params.ef:
            replay.residual = self.residuals[rank][ids].ravel()
        payload, decoded = replay.step(values.ravel(), scale)
        if params.ef:
            self.residuals[rank][ids] = replay.residual.reshape(values.shape)
        return payload, decoded.reshape(values.shape)

    @property
    def _has_header(self) -> bool:
        """Whether the learning rates' ratio precedes a payload."""
        return self._params.ef == "corrected" and not self._params.compressor.traits.summable


def chunks(n: int, elements: int) -> list[slice]:
    """Cut a tensor evenly into the fewest chunks of at most `elements` elements."""
    size = -(-n // -(-n // elements))
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]


def mean_of_one(shapes, compression_params, uncompressed=()):
    """Return a `mean` for one worker, whose parameters p0, p1, ... have these shapes.

    `uncompressed` are kinds of rounds that are not compressed.
    """
    exchanges = {
        f"p{i}": Exchange(1, parse(compression_params), np.prod(shape), i, np.float32)
        for i, shape in enumerate(shapes)
        if compression_params
    }

    def mean(kind, name, vectors):
        (vector,) = vectors
        if kind in uncompressed or not compression_params:
            return vector
        return exchanges[name].step([vector.ravel()], 1.0, [0]).reshape(vector.shape)

    return mean
