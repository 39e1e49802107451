"""The choices of "auto" for a trainer, and the measurements that they need."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, Callable, Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ...auto import probe, selection
from ...auto.algorithm import AutomaticAlgorithm, Decision
from ...auto.choice import Link, Measured
from ...compression import CompressionParams, candidates
from ...exchange.plan import Tensor
from ..exchange.exchange import Exchange


def settled(
    exchange: Exchange,
    tensors: Sequence[Tensor],
    gradients: Sequence[NDArray],
    choices: dict[int, str],
) -> list[Tensor]:
    """Replace "auto" in these tensors by rank 0's choices; workers measure for new ones.

    `choices` has the names of candidates by parameter index. New ones are added.
    """
    arrays = dict(zip((tensor.name for tensor in tensors), gradients))
    undecided = [tensor for tensor in tensors if tensor.params.accuracy is not None]
    if not undecided:
        return list(tensors)
    names = of_root(exchange, [choices.get(tensor.index) for tensor in undecided])
    if None in names:
        ready = _ready(arrays[tensor.name] for tensor in undecided)
        chosen = selection.chosen(undecided, Workers(exchange), ready)
        names = of_root(exchange, [old or new for old, new in zip(names, chosen)])
    choices.update((tensor.index, name) for tensor, name in zip(undecided, names))
    return [_with_choice(tensor, choices) for tensor in tensors]


def _with_choice(tensor: Tensor, choices: Mapping[int, str]) -> Tensor:
    if tensor.params.accuracy is None:
        return tensor
    return replace(tensor, params=candidates(tensor.params)[choices[tensor.index]])


def decided(
    exchange: Exchange,
    automatic: AutomaticAlgorithm,
    tensors: Sequence[Tensor],
    shapes: Sequence[Sequence[int]],
) -> Decision:
    """The decision for an algorithm; all workers call it."""
    workers = Workers(exchange)
    with exchange.uncounted():
        (seconds,) = workers.slowest([automatic.seconds])
    return automatic.choose(tensors, shapes, workers, seconds)


def of_root(exchange: Exchange, value: Any) -> Any:
    """Rank 0's value, which consists of plain Python values."""
    if exchange.num_workers == 1:
        return value
    data = json.dumps(value).encode()
    (size,) = np.frombuffer(exchange.bytes_of_root(np.int64(len(data)).tobytes()), np.int64)
    return json.loads(exchange.bytes_of_root(data[:size].ljust(size)))


def _ready(gradients: Iterable[NDArray]) -> list[float]:
    """For each gradient, half the seconds until it is ready, because the first backward is slow."""
    times = []
    for gradient in gradients:
        gradient.wait_to_read()
        times.append(time.perf_counter())
    return [(at - times[0]) / 2 for at in times]


_links: WeakKeyDictionary[Exchange, Link] = WeakKeyDictionary()


class Workers(probe.Workers):
    def __init__(self, exchange: Exchange, name: str = "probe") -> None:
        self._exchange, self._name = exchange, name
        self.topology, self.logs = exchange.topology(), exchange.rank == 0

    def measured(self, compressors: Mapping[str, CompressionParams]) -> Measured:
        """Measure the network only once."""
        exchange = self._exchange
        with exchange.uncounted():
            if exchange not in _links:
                before = set(exchange.channels.tensors)
                workers = Workers(exchange, "probe of the link")
                _links[exchange] = probe.link(workers, self.topology)
                exchange.channels.hide(exchange.channels.tensors.keys() - before)
            return Measured(_links[exchange], probe.speeds(self, compressors))

    def join(self, about: str) -> None:
        self._exchange.agree("step", [("", {"probe": about})])

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        exchange, name = self._exchange, f"{self._name}.{len(seconds)}"
        shape = exchange.num_workers, len(seconds)
        table = np.zeros(shape)
        table[exchange.rank] = seconds
        array = mx.nd.array(table.reshape(-1), dtype="float64")
        return exchange.total(name, array, "step").asnumpy().reshape(shape).max(axis=0).tolist()

    def declare(self, tensors: Sequence[Tensor]) -> None:
        self._exchange.declare(tensors, minimum=0)

    def exchange(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        values = np.random.default_rng(self._exchange.rank)
        arrays = {t.name: mx.nd.array(values.standard_normal(t.size, np.float32)) for t in tensors}
        mx.nd.waitall()

        def sum_in_place() -> None:
            self._exchange.sum_in_place(arrays)
            mx.nd.waitall()

        return sum_in_place
