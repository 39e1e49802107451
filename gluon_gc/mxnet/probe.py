"""The probe of a cluster whose workers a KVStore connects."""

from __future__ import annotations

from typing import Callable, List, Mapping, Sequence
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np

from ..auto import probe
from ..auto.choice import Link, Measured, Topology
from ..compression import CompressionParams
from ..plan import Tensor
from .exchange import CompressingKVStore
from .totals import total

_links: WeakKeyDictionary[CompressingKVStore, Link] = WeakKeyDictionary()


def measured(
    store: CompressingKVStore, topology: Topology, compressors: Mapping[str, CompressionParams]
) -> Measured:
    """What the cluster is, and how fast these compressors are; it takes some seconds."""
    with store.aside():
        if store not in _links:
            before = list(store.channels)
            _links[store] = probe.link(_Workers(store, "probe of the link"), topology)
            store.channels[:] = before  # nobody is to find the probe's messages among the others
        return Measured(_links[store], probe.speeds(_Workers(store, "probe"), compressors))


class _Workers(probe.Workers):
    """The workers of a store.

    Parameters
    ----------
    store : CompressingKVStore
    name : str
        Begins the names of sums. Those of the link's probe can be exchanged in that probe alone.
    """

    def __init__(self, store: CompressingKVStore, name: str) -> None:
        self._store, self._name = store, name

    def meet(self, about: str) -> None:
        self._store.agree("step", [("", {"probe": about})])

    def slowest(self, seconds: Sequence[float]) -> List[float]:
        store, name = self._store, f"{self._name}.{len(seconds)}"
        shape = store.num_workers, len(seconds)
        table = np.zeros(shape)
        table[store.rank] = seconds
        array = mx.nd.array(table.reshape(-1), dtype="float64")
        return total(store, name, array, "step").asnumpy().reshape(shape).max(axis=0).tolist()

    def declare(self, tensors: Sequence[Tensor]) -> None:
        self._store.declare(tensors, minimum=0)

    def exchange(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        values = np.random.default_rng(self._store.rank)
        arrays = [mx.nd.array(values.standard_normal(t.size, np.float32)) for t in tensors]
        mx.nd.waitall()

        def pushpull() -> None:
            self._store.pushpull([tensor.name for tensor in tensors], arrays)
            mx.nd.waitall()

        return pushpull
