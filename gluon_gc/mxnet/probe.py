"""Measures what connects the workers, and how fast they compress, for `gluon_gc.choice`.

All workers come here together, and all get the same numbers: those of the slowest one.
"""

from __future__ import annotations

import time
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np

from .. import env, plan
from ..choice import Link, Load, Measured, Topology, Way
from ..compression import CompressionParams, parse
from ..kernels import speed
from ..kernels.speed import Speed
from ..plan import Tensor
from .exchange import CompressingKVStore

_MESSAGES = 16  # under way at once
_ROUNDS = 2, 7  # at least and at most, of which the quickest counts
_SIZES = (2**8, 2**14, 2**16, 2**18, 1_000_000)  # bytes of one of them
_MOST_ELEMENTS = 250_000  # of one of them, which is a whole partition
_LONGEST = 0.3  # seconds that a round may be expected to take, and that the later ones may
_LEAST = 0.1  # of a time, that a part of it takes; noise may say that it is less than nothing


class _Sent(NamedTuple):
    """An exchange of some messages: what travels one way, and what it takes."""

    load: Load
    seconds: float

    def without(self, seconds: float) -> _Sent:
        """This exchange, as if nothing else had taken so many of its seconds."""
        return self._replace(seconds=max(_LEAST * self.seconds, self.seconds - seconds))


_links: WeakKeyDictionary[CompressingKVStore, Link] = WeakKeyDictionary()


def measured(
    store: CompressingKVStore, topology: Topology, compressors: Mapping[str, CompressionParams]
) -> Measured:
    """What the cluster is, and how fast these compressors are; it takes some seconds."""
    scale, step = store.gradient_scale, store._step
    store.gradient_scale = 1.0
    if store not in _links:
        _links[store] = _link(store, topology)
    kernels = _speeds(store, compressors)
    store.gradient_scale, store._step = scale, step
    return Measured(_links[store], kernels)


def _speeds(
    store: CompressingKVStore, compressors: Mapping[str, CompressionParams]
) -> Dict[str, Speed]:
    """How fast each compressor is where it is slowest, while all workers use it."""
    store.meet({"speed": sorted(compressors)})
    speeds = [speed.measured(params.codec) for params in compressors.values()]
    flat = [seconds for of_compressor in speeds for seconds in of_compressor]
    slowest = np.reshape(_slowest(store, f"speeds.{len(flat)}", flat), (len(speeds), -1))
    return {name: Speed(*map(float, row)) for name, row in zip(compressors, slowest)}


def _link(store: CompressingKVStore, topology: Topology) -> Link:
    """Send messages of growing sizes, for as long as that is quick."""
    before, partition_bytes = list(store.channels), env.get("BYTEPS_PARTITION_BYTES")
    sent: List[List[_Sent]] = []
    for last, size in zip((0, *_SIZES), _SIZES):
        if len(sent) >= 2:
            expected = max(_expected(*kind, size / last) for kind in zip(*sent[-2:]))
            if expected > _LONGEST or size > partition_bytes:
                break
        kinds = [_tensors(*kind, size) for kind in _kinds().items()]
        store.declare((tensor for of_kind in kinds for tensor in of_kind), minimum=0)
        loads = [Load.of(plan.cut(of_kind, partition_bytes, 0)) for of_kind in kinds]
        sent.append([_Sent(load, _seconds(store, of_kind)) for load, of_kind in zip(loads, kinds)])
    (of_payload,) = _speeds(store, {"payload": _kinds()["payload", 1]}).values()
    store.channels[:] = before  # nobody is to find the messages of this probe among the others
    *plain, payloads = zip(*sent)
    compressing = topology.compressing(of_payload)
    elements = (_MESSAGES * min(size, _MOST_ELEMENTS) for size in _SIZES)
    travels = [each.without(count * compressing) for each, count in zip(payloads, elements)]
    return Link(*(Way.fitted(of_kind, topology.passes) for of_kind in (*plain, travels)))


def _kinds() -> Dict[Tuple[str, int], CompressionParams]:
    """What is sent to measure each way of a link, by its name and the bytes of an element."""
    return {
        ("float32", 4): CompressionParams(),
        ("float16", 2): CompressionParams(fp16=True),
        ("payload", 1): parse({"compressor": "bytegrad"}),
    }


def _tensors(kind: Tuple[str, int], params: CompressionParams, size: int) -> List[Tensor]:
    """Some that send so many bytes each, or less: a lone message takes longer than its bytes."""
    name, width = kind
    elements = min(size // width, _MOST_ELEMENTS)
    return [
        Tensor(f"probe.{name}.{size}.{i}", elements, "float32", params) for i in range(_MESSAGES)
    ]


def _seconds(store: CompressingKVStore, tensors: Sequence[Tensor]) -> float:
    """What it takes to exchange these, of one size, at best."""
    names = [tensor.name for tensor in tensors]
    values = np.random.default_rng(store.rank).standard_normal(tensors[0].size, np.float32)
    arrays = [mx.nd.array(values) for _ in names]

    def of_round() -> float:
        mx.nd.waitall()
        store.meet({"probe": names[0]})
        start = time.perf_counter()
        store.pushpull(names, arrays)
        mx.nd.waitall()
        return time.perf_counter() - start

    of_round()  # makes arrays
    (second,) = _slowest(store, "round", [of_round()])
    least, most = _ROUNDS
    rounds = max(least, min(most, int(_LONGEST / second)))
    quickest = min([second, *(of_round() for _ in range(rounds - 1))])
    return _slowest(store, "rounds", [quickest])[0]


def _slowest(store: CompressingKVStore, what: str, values: Sequence[float]) -> List[float]:
    """Of each number the largest that a worker has."""
    name, shape = f"probe.{what}", (store.num_workers, len(values))
    table = np.zeros(shape)
    table[store.rank] = values
    array = mx.nd.array(table.reshape(-1), dtype="float64")
    if not store.declared(name):
        store.declare([Tensor(name, table.size, "float64", CompressionParams())])
    store.pushpull(name, array)
    return array.asnumpy().reshape(shape).max(axis=0).tolist()


def _expected(less: _Sent, more: _Sent, times: float) -> float:
    """Seconds that so many times the bytes of the larger of two exchanges will take."""
    slope = max(0.0, more.seconds - less.seconds) / (more.load.bytes - less.load.bytes)
    return more.seconds + slope * more.load.bytes * (times - 1)
