"""Measures what connects the workers, and how fast they compress, for `gluon_gc.choice`.

All workers come here together, and all get the same numbers: those of the slowest one.
"""

from __future__ import annotations

import time
from typing import List, Mapping, NamedTuple, Sequence, Tuple
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np

from .. import env
from ..choice import Link, Measured, Topology, Way
from ..compression import CompressionParams, parse
from ..kernels import speed
from ..plan import Tensor
from .channel import Channel
from .exchange import CompressingKVStore

_MESSAGES = 4  # under way at once
_ROUNDS = 2, 7  # at least and at most, of which the quickest counts
_SIZES = (2**8, 2**14, 2**16, 2**18, 2**20)  # bytes of float32 of one of them
_LONGEST = 0.15  # seconds that a round may be expected to take, and that the later ones may


class _Sent(NamedTuple):
    """An exchange of some messages: their bytes, one way, and what it takes."""

    bytes: float
    messages: int
    seconds: float

    @classmethod
    def of(cls, channels: Sequence[Channel], seconds: float) -> _Sent:
        return cls(sum(channel.message_bytes for channel in channels), len(channels), seconds)


_links: WeakKeyDictionary[CompressingKVStore, Link] = WeakKeyDictionary()


def measured(
    store: CompressingKVStore, topology: Topology, compressors: Mapping[str, CompressionParams]
) -> Measured:
    """What the cluster is, and how fast these compressors are; it takes about a second."""
    scale, step = store.gradient_scale, store._step
    store.gradient_scale = 1.0
    if store not in _links:
        _links[store] = _link(store, topology)
    store.meet({"speed": sorted(compressors)})  # all are measured at the same time
    speeds = [speed.measured(params.codec) for params in compressors.values()]
    flat = [seconds for of_compressor in speeds for seconds in of_compressor]
    slowest = np.reshape(_slowest(store, f"speeds.{len(flat)}", flat), (len(speeds), -1))
    store.gradient_scale, store._step = scale, step
    kernels = {name: speed.Speed(*map(float, row)) for name, row in zip(compressors, slowest)}
    return Measured(_links[store], kernels)


def _link(store: CompressingKVStore, topology: Topology) -> Link:
    """Send messages of growing sizes, for as long as that is quick."""
    before = list(store.channels)
    sent: List[List[_Sent]] = []
    for last, size in zip((0, *_SIZES), _SIZES):
        if len(sent) >= 2:
            expected = max(_expected(*kind, size / last) for kind in zip(*sent[-2:]))
            if expected > _LONGEST or size > env.get("BYTEPS_PARTITION_BYTES"):
                break
        names = _declared(store, size)
        seconds = [_seconds(store, of_kind, size) for of_kind in names]
        channels = [store.channels_of(of_kind) for of_kind in names]
        sent.append([_Sent.of(*each) for each in zip(channels, seconds)])
    store.channels[:] = before  # nobody is to find the messages of this probe among the others
    return Link(*(_way(of_kind, topology.passes) for of_kind in zip(*sent)))


def _kinds() -> Tuple[CompressionParams, ...]:
    """What is sent to measure each way of a link."""
    return CompressionParams(), CompressionParams(fp16=True), parse({"compressor": "bytegrad"})


def _declared(store: CompressingKVStore, size: int) -> List[List[str]]:
    """The names of tensors of so many bytes, of each kind."""
    names = [[f"probe.{kind}.{size}.{i}" for i in range(_MESSAGES)] for kind in Link._fields]
    store.declare(
        (
            Tensor(name, size // 4, "float32", params)
            for of_kind, params in zip(names, _kinds())
            for name in of_kind
        ),
        minimum=0,
    )
    return names


def _seconds(store: CompressingKVStore, names: Sequence[str], size: int) -> float:
    """What it takes to exchange these tensors, at best."""
    values = np.random.default_rng(store.rank).standard_normal(size // 4, np.float32)
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
    slope = max(0.0, more.seconds - less.seconds) / (more.bytes - less.bytes)
    return more.seconds + slope * more.bytes * (times - 1)


def _way(sent: Sequence[_Sent], passes: float) -> Way:
    """What exchanges of one kind, the smallest first, say of a way."""
    *less, most = sent
    longer = most.seconds - less[-1].seconds
    rate = (most.bytes - less[-1].bytes) / max(longer, 0.1 * most.seconds)  # noise may say < 0
    message = min((each.seconds - each.bytes / rate) / each.messages for each in less)
    return Way(max(0.0, message), rate * passes)
