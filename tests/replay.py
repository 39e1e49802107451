"""The exchange in NumPy: what workers and server compute, written once more to be compared."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from gluon_gc import kernels

WORD = 2**64
State = Tuple[int, int]


def draws(a: int, b: int) -> Iterator[int]:
    """xorshift128+ with shifts 23, 17 and 26, from the state (a, b)."""
    while True:
        t = a ^ (a << 23) % WORD
        a = b
        b = t ^ (t >> 17) ^ a ^ (a >> 26)
        yield (a + b) % WORD


class Node:
    """One node's compressor with error feedback and momentum, on arrays of one dtype.

    Parameters
    ----------
    params : mapping
        As compression_params.
    mu : float, optional
        Of Nesterov's momentum.
    start : tuple of two int, optional
        Where the node's random stream starts.
    """

    def __init__(
        self, params: Mapping[str, Any], mu: Optional[float] = None, start: Optional[State] = None
    ) -> None:
        self.params, self.ef, self.mu = params, params.get("ef"), mu
        self.residual = self.momentum = 0
        self.stream = draws(*start) if start else iter(())

    def __call__(self, g: np.ndarray, ratio: float = 1.0) -> np.ndarray:
        """What the payload decodes to."""
        T = g.dtype.type
        if self.mu is not None:
            self.momentum = T(self.mu) * self.momentum + g
            g = g + T(self.mu) * self.momentum
        p = g
        if self.ef:
            p = g + T(ratio if self.ef == "corrected" else 1) * self.residual
        decoded = DECODED[self.params["compressor"]](p, self).astype(g.dtype)
        if self.ef:
            self.residual = p - decoded
        return decoded

    def draw(self, count: int) -> List[int]:
        return [next(self.stream) for _ in range(count)]


def onebit(p: np.ndarray, node: Node) -> np.ndarray:
    scale = p.dtype.type(np.abs(p.astype(np.float64)).mean()) if node.params["scaling"] else 1
    return np.where(p < 0, -scale, scale)


def element_count(k: float, n: int) -> int:
    return min(n, max(1, int(k * n if k < 1 else k)))


def topk(p: np.ndarray, node: Node) -> np.ndarray:
    chosen = np.lexsort((np.arange(p.size), -np.abs(p)))[: element_count(node.params["k"], p.size)]
    decoded = np.zeros_like(p)
    decoded[chosen] = p[chosen]
    return decoded


def randomk(p: np.ndarray, node: Node) -> np.ndarray:
    k = element_count(node.params["k"], p.size)
    drawn = [draw % p.size for draw in node.draw(k)]
    decoded = np.zeros_like(p)
    decoded[drawn] = p[drawn] if node.ef else p[drawn] * p.dtype.type(p.size / k)
    return decoded


def dithering(p: np.ndarray, node: Node) -> np.ndarray:
    T = p.dtype.type
    natural = node.params.get("partition") == "natural"
    levels = 2 ** (node.params["k"] - 1) if natural else node.params["k"]
    if node.params.get("normalize") == "l2":
        norm = T(np.sqrt(np.sum(p.astype(np.float64) ** 2)))
    else:
        norm = np.abs(p).max()
    y = np.abs(p) * (T(levels) / norm)
    if natural:
        above = 2.0 ** np.ceil(np.log2(np.maximum(np.ceil(y), 1)))
        lower = np.where(above > 1, above / 2, 0).astype(T)
    else:
        lower = np.floor(y)
    step = np.maximum(lower, T(1)) if natural else T(1)
    chances = [int(chance * WORD) for chance in ((y - lower) / step).tolist()]
    drawn = [draw < chance for draw, chance in zip(node.draw(p.size), chances)]
    q = lower + step * np.array(drawn)
    return np.copysign(q.astype(T) / T(levels) * norm, p)


def bytegrad(p: np.ndarray, node: Node) -> np.ndarray:
    T = p.dtype.type
    low, high = p.min(), p.max()
    if low == high:
        return p
    width = high - low
    number = np.rint((p - low) * (T(255) / width)).astype(p.dtype)
    step = width / T(255)
    return np.where(number < 128, low + number * step, high + (number - T(255)) * step)


DECODED: Dict[str, Callable[[np.ndarray, Node], np.ndarray]] = {
    "onebit": onebit,
    "topk": topk,
    "randomk": randomk,
    "dithering": dithering,
    "bytegrad": bytegrad,
}
"""By compressor: what p decodes to at a node."""


class Exchange:
    """All workers and the server, if there is one, for n elements of parameter `index`."""

    def __init__(
        self, workers: int, params: Mapping[str, Any], mu: Optional[float], n: int, index: int
    ) -> None:
        def start(node: int) -> Optional[State]:
            return STARTS.get(params["compressor"], lambda *_: None)(params, n, index, node)

        self.workers = [Node(params, mu, start(rank)) for rank in range(workers)]
        self.server: Callable[..., np.ndarray] = lambda total, ratio: total  # there is none
        if params["compressor"] != "randomk" and params.get("exchange") != "gather":
            self.server = Node(params, start=start(workers))

    def step(
        self, gradients: Sequence[np.ndarray], ratio: float, order: Sequence[int]
    ) -> np.ndarray:
        """The gradient that everybody gets, from `gradients` by rank, summed in `order`."""
        decoded = [worker(g, ratio) for worker, g in zip(self.workers, gradients)]
        total = decoded[order[0]]
        for rank in order[1:]:
            total = total + decoded[rank]
        return self.server(total, ratio)


def _randomk_start(params: Mapping[str, Any], n: int, index: int, node: int) -> State:
    seed = params["seed"] + index + element_count(params["k"], n)
    return seed, seed


def _dithering_start(params: Mapping[str, Any], n: int, index: int, node: int) -> State:
    state = np.full(2, params["seed"] + index, np.uint64)
    kernels.stream_jump_to_worker(state, node)
    return state[0].item(), state[1].item()


STARTS: Dict[str, Callable[[Mapping[str, Any], int, int, int], State]] = {
    "randomk": _randomk_start,
    "dithering": _dithering_start,
}
"""By compressor that draws: where the stream of (params, n, index, node) starts."""


def chunks(n: int, elements: int) -> List[slice]:
    """How a tensor of n elements is cut: evenly, into as few chunks of so many elements as do."""
    size = -(-n // -(-n // elements))
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
