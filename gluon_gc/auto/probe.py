"""Measures what connects the workers, and how fast they compress, for `gluon_gc.auto.choice`.

All workers come here together, and all get the same numbers: those of the slowest one.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from .. import env, plan
from ..compression import CompressionParams, parse
from ..plan import Tensor
from . import speed
from .choice import Link, Load, Topology, Way
from .speed import Speed

_MESSAGES = 16  # under way at once
_ROUNDS = 2, 7  # at least and at most, of which the quickest counts
_SIZES = (2**8, 2**14, 2**16, 2**18, 1_000_000)  # bytes of one of them
_MOST_ELEMENTS = 250_000  # of one of them, which is a whole partition
_LONGEST = 0.3  # seconds that a round may be expected to take, and that the later ones may
_LEAST = 0.1  # of a time, that a part of it takes; noise may say that it is less than nothing


class Workers:
    """The workers of a probe. All of them call each method."""

    def meet(self, about: str) -> None:
        """Return once all workers have called this.

        Raises
        ------
        RuntimeError
            Another worker calls this about something else.
        """
        raise NotImplementedError

    def slowest(self, seconds: Sequence[float]) -> List[float]:
        """The largest value of each number among the workers."""
        raise NotImplementedError

    def declare(self, tensors: Sequence[Tensor]) -> None:
        """Prepare to exchange these tensors of float32."""
        raise NotImplementedError

    def exchange(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        """A function that sums these tensors over the workers, and returns when it has the sums."""
        raise NotImplementedError


class _Sent(NamedTuple):
    """The load of an exchange in one direction, and its seconds."""

    load: Load
    seconds: float

    def without(self, seconds: float) -> _Sent:
        """This exchange without seconds that something else took."""
        return self._replace(seconds=max(_LEAST * self.seconds, self.seconds - seconds))


def speeds(workers: Workers, compressors: Mapping[str, CompressionParams]) -> Dict[str, Speed]:
    """The speed of each compressor on the slowest worker, while all workers use it."""
    workers.meet(f"speed of {', '.join(sorted(compressors))}")
    measured = [speed.measured(params.codec) for params in compressors.values()]
    flat = [seconds for of_compressor in measured for seconds in of_compressor]
    slowest = np.reshape(workers.slowest(flat), (len(measured), -1))
    return {name: Speed(*map(float, row)) for name, row in zip(compressors, slowest)}


def link(workers: Workers, topology: Topology) -> Link:
    """The cost of messages, measured with growing sizes as long as that is quick."""
    partition_bytes = env.get("BYTEPS_PARTITION_BYTES")
    sent: List[List[_Sent]] = []
    for last, size in zip((0, *_SIZES), _SIZES):
        if len(sent) >= 2:
            expected = max(_expected(*kind, size / last) for kind in zip(*sent[-2:]))
            if expected > _LONGEST or size > partition_bytes:
                break
        kinds = [_tensors(*kind, size) for kind in _kinds().items()]
        workers.declare([tensor for of_kind in kinds for tensor in of_kind])
        loads = [Load.of(plan.cut(of_kind, partition_bytes, 0)) for of_kind in kinds]
        seconds = [_seconds(workers, of_kind) for of_kind in kinds]
        sent.append([_Sent(*each) for each in zip(loads, seconds)])
    (of_payload,) = speeds(workers, {"payload": _kinds()["payload", 1]}).values()
    *plain, payloads = zip(*sent)
    compressing = topology.compressing(of_payload)
    elements = (_MESSAGES * min(size, _MOST_ELEMENTS) for size in _SIZES)
    travels = [each.without(count * compressing) for each, count in zip(payloads, elements)]
    return Link(*(Way.fitted(of_kind, topology.passes) for of_kind in (*plain, travels)))


def _kinds() -> Dict[Tuple[str, int], CompressionParams]:
    """The params for each measurement of a link, by its name and the bytes of an element."""
    return {
        ("float32", 4): CompressionParams(),
        ("float16", 2): CompressionParams(fp16=True),
        ("payload", 1): parse({"compressor": "bytegrad"}),
    }


def _tensors(kind: Tuple[str, int], params: CompressionParams, size: int) -> List[Tensor]:
    """Several tensors of at most this many bytes, because a lone message takes longer."""
    name, width = kind
    elements = min(size // width, _MOST_ELEMENTS)
    return [
        Tensor(f"probe.{name}.{size}.{i}", elements, "float32", params) for i in range(_MESSAGES)
    ]


def _seconds(workers: Workers, tensors: Sequence[Tensor]) -> float:
    """The least seconds in which these tensors, of one size, are exchanged."""
    exchange = workers.exchange(tensors)

    def of_round() -> float:
        workers.meet(tensors[0].name)
        start = time.perf_counter()
        exchange()
        return time.perf_counter() - start

    of_round()  # makes what later ones use again
    (second,) = workers.slowest([of_round()])
    least, most = _ROUNDS
    rounds = max(least, min(most, int(_LONGEST / second)))
    quickest = min([second, *(of_round() for _ in range(rounds - 1))])
    return workers.slowest([quickest])[0]


def _expected(less: _Sent, more: _Sent, times: float) -> float:
    """The expected seconds for `times` the bytes of the larger of two exchanges."""
    slope = max(0.0, more.seconds - less.seconds) / (more.load.bytes - less.load.bytes)
    return more.seconds + slope * more.load.bytes * (times - 1)
