"""The exchange in NumPy: what workers and server compute, made of the compressors' replays."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np

from gluon_gc import kernels
from gluon_gc.compression import CompressionParams

from .core.compressors import tests_of

WORD = 2**64
State = Tuple[int, int]


def draws(a: int, b: int) -> Iterator[int]:
    """xorshift128+ with shifts 23, 17 and 26, from the state (a, b)."""
    while True:
        t = a ^ (a << 23) % WORD
        a = b
        b = t ^ (t >> 17) ^ a ^ (a >> 26)
        yield (a + b) % WORD


def own_start(seed: int, index: int, node: int) -> State:
    """Where a node's own stream for parameter `index` starts."""
    state = np.full(2, seed + index, np.uint64)
    kernels.jump_to_worker(state, node)
    return state[0].item(), state[1].item()


def start_of(params: CompressionParams, n: int, index: int, node: int) -> State:
    """Where a node draws for n elements of parameter `index`, if its compressor draws."""
    compressor = params.compressor
    if not compressor.traits.draws:
        return 0, 0
    if compressor.traits.draws_alike:
        seed = compressor.seed + index + params.codec(n, "float32").draws
        return seed, seed
    return own_start(compressor.seed, index, node)


class Exchange:
    """All workers and the server, if there is one, for n elements of parameter `index`."""

    def __init__(
        self, workers: int, params: CompressionParams, n: int, index: int, dtype: Any
    ) -> None:
        def node(params: CompressionParams, number: int) -> Any:
            start = start_of(params, n, index, number)
            return tests_of(params.compressor.name).Replay(params.options(), n, dtype, start)

        self.workers = [node(params, rank) for rank in range(workers)]
        self.server = None
        if not params.compressor.traits.summable and params.exchange != "gather":
            self.server = node(params.aggregators, 0)  # which draws as worker 0 does

    def step(
        self, gradients: Sequence[np.ndarray], ratio: float, order: Sequence[int]
    ) -> np.ndarray:
        """The gradient that everybody gets, from `gradients` by rank, summed in `order`."""
        nodes = zip(self.workers, gradients)
        decoded = [worker.step(g, ratio=ratio)[1] for worker, g in nodes]
        total = decoded[order[0]]
        for rank in order[1:]:
            total = total + decoded[rank]
        return total if self.server is None else self.server.step(total, ratio=ratio)[1]


def chunks(n: int, elements: int) -> List[slice]:
    """How a tensor of n elements is cut: evenly, into as few chunks of so many elements as do."""
    size = -(-n // -(-n // elements))
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
