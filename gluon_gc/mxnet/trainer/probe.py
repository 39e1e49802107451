"""Measures the network and the compressors of a cluster of MXNet workers, for "auto"."""

from __future__ import annotations

from typing import Callable, List, Mapping, Sequence
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np

from ...auto import probe
from ...auto.choice import Link, Measured, Topology
from ...compression import CompressionParams
from ...plan import Tensor
from ..exchange.exchange import Exchange
from ..exchange.totals import total

_links: WeakKeyDictionary[Exchange, Link] = WeakKeyDictionary()


def measured(
    exchange: Exchange, topology: Topology, compressors: Mapping[str, CompressionParams]
) -> Measured:
    """Measure the cluster's network and the speed of these compressors; takes some seconds."""
    with exchange.uncounted():
        if exchange not in _links:
            before = set(exchange.channels.tensors)
            _links[exchange] = probe.link(_Workers(exchange, "probe of the link"), topology)
            exchange.channels.hide(exchange.channels.tensors.keys() - before)
        return Measured(_links[exchange], probe.speeds(_Workers(exchange, "probe"), compressors))


def slowest(exchange: Exchange, seconds: float) -> float:
    """The maximum of a duration over all workers; all workers call it."""
    with exchange.uncounted():
        (maximum,) = _Workers(exchange, "probe").slowest([seconds])
    return maximum


class _Workers(probe.Workers):
    """The workers of an exchange.

    Parameters
    ----------
    exchange : Exchange
    name : str
        The prefix of the tensors' names. Tensors of the link's probe are removed after that probe.
    """

    def __init__(self, exchange: Exchange, name: str) -> None:
        self._exchange, self._name = exchange, name

    def meet(self, about: str) -> None:
        self._exchange.agree("step", [("", {"probe": about})])

    def slowest(self, seconds: Sequence[float]) -> List[float]:
        exchange, name = self._exchange, f"{self._name}.{len(seconds)}"
        shape = exchange.num_workers, len(seconds)
        table = np.zeros(shape)
        table[exchange.rank] = seconds
        array = mx.nd.array(table.reshape(-1), dtype="float64")
        return total(exchange, name, array, "step").asnumpy().reshape(shape).max(axis=0).tolist()

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
