"""Measures the network and the speed of compressors, for `gluon_gc.auto.choice`.

All workers measure at the same time, and all get the results of the slowest worker.
"""

from __future__ import annotations

import time
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np

from .. import env
from ..compression import CompressionParams, parse
from ..exchange import plan
from ..exchange.plan import Tensor
from . import speed
from .choice import Link, Load, Measured, Topology, TrafficCost
from .speed import Speed

_MESSAGES = 16  # tensors in one exchange
_MOST_ROUNDS = 7  # exchanges of each size
_SIZES = (2**8, 2**14, 2**16, 2**18, 1_000_000)  # bytes that are sent for one tensor
_MOST_ELEMENTS = 250_000  # elements of a tensor: 1,000,000 bytes of float32 are one partition
_TOGETHER = 0.3  # seconds: repetitions of an exchange stay below, except the least
_LEAST = 0.1  # the smallest share of an exchange's time that is left after a subtraction


class Effort(NamedTuple):
    """How thoroughly the network is measured."""

    longest: float = 0.3  # seconds: larger exchanges are skipped
    rounds: int = 2  # the least exchanges of each size
    statistic: Callable[[Sequence[float]], float] = min  # of the seconds of the rounds


USUAL = Effort()


class Workers:
    """The interface of a front end to "auto". All workers call each method together."""

    topology: Topology | None  # None: nothing is sent over a network
    logs: bool  # whether this worker logs choices and their reasons

    def join(self, about: str) -> None:
        """Return once all workers have called this with the same text; else raise RuntimeError."""
        raise NotImplementedError

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The maximum over the workers of each number."""
        raise NotImplementedError

    def declare(self, tensors: Sequence[Tensor]) -> None:
        """Prepare to exchange these float32 tensors."""
        raise NotImplementedError

    def exchange(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        """Return a function that sums these tensors over the workers and waits for the sums."""
        raise NotImplementedError

    def measured(
        self, compressors: Mapping[str, CompressionParams], effort: Effort = USUAL
    ) -> Measured:
        """Measure the network and the speed of these compressors, for some seconds."""
        return Measured(link(self, self.topology, effort), speeds(self, compressors))


class _Sent(NamedTuple):
    load: Load
    seconds: float

    def without(self, seconds: float) -> _Sent:
        """This exchange without the seconds of another activity, such as compression."""
        # Noise may make the difference negative.
        return self._replace(seconds=max(_LEAST * self.seconds, self.seconds - seconds))


def speeds(workers: Workers, compressors: Mapping[str, CompressionParams]) -> dict[str, Speed]:
    """The speed of each compressor on the slowest worker, while all workers measure."""
    if not compressors:
        return {}
    workers.join(f"speed of {', '.join(sorted(compressors))}")
    measured = [speed.measured(params.codec) for params in compressors.values()]
    flat = [seconds for compressor_seconds in measured for seconds in compressor_seconds]
    slowest = np.reshape(workers.slowest(flat), (len(measured), -1))
    return {name: Speed(*map(float, row)) for name, row in zip(compressors, slowest)}


def link(workers: Workers, topology: Topology, effort: Effort = USUAL) -> Link:
    """The cost of messages, measured with growing sizes until a size would take too long."""
    partition_bytes = env.get("BYTEPS_PARTITION_BYTES")
    sent: list[list[_Sent]] = []
    for last, size in zip((0, *_SIZES), _SIZES):
        if len(sent) >= 2:
            expected = max(_expected(*kind, size / last) for kind in zip(*sent[-2:]))
            if expected > effort.longest or size > partition_bytes:
                break
        kinds = [_tensors(*kind, size) for kind in _kinds().items()]
        workers.declare([tensor for tensors_of_kind in kinds for tensor in tensors_of_kind])
        loads = [
            Load.of(plan.cut(tensors_of_kind, partition_bytes, 0)) for tensors_of_kind in kinds
        ]
        seconds = [_seconds(workers, tensors_of_kind, effort) for tensors_of_kind in kinds]
        sent.append([_Sent(*each) for each in zip(loads, seconds)])
    (payload_speed,) = speeds(workers, {"payload": _kinds()["payload", 1]}).values()
    *plain, payloads = zip(*sent)
    # The model adds the time of compression separately, so it is subtracted here.
    compressing = topology.compressing(payload_speed)
    elements = (_MESSAGES * min(size, _MOST_ELEMENTS) for size in _SIZES)
    travels = [each.without(count * compressing) for each, count in zip(payloads, elements)]
    kinds_of_exchanges = (*plain, travels)
    return Link(
        *(TrafficCost.fitted(exchanges, topology.passes) for exchanges in kinds_of_exchanges)
    )


def _kinds() -> dict[tuple[str, int], CompressionParams]:
    """The params for each kind of traffic, by its name and the bytes of an element."""
    return {
        ("float32", 4): CompressionParams(),
        ("float16", 2): CompressionParams(fp16=True),
        ("payload", 1): parse({"compressor": "bytegrad"}),
    }


def _tensors(kind: tuple[str, int], params: CompressionParams, size: int) -> list[Tensor]:
    """Several tensors of at most `size` bytes each. A single message would overlap with nothing."""
    name, width = kind
    elements = min(size // width, _MOST_ELEMENTS)
    return [
        Tensor(f"probe.{name}.{size}.{i}", elements, "float32", params) for i in range(_MESSAGES)
    ]


def _seconds(workers: Workers, tensors: Sequence[Tensor], effort: Effort) -> float:
    """The seconds of an exchange of these tensors, on the slowest worker."""
    exchange = workers.exchange(tensors)

    def timed() -> float:
        workers.join(tensors[0].name)
        start = time.perf_counter()
        exchange()
        return time.perf_counter() - start

    timed()  # allocates buffers
    (duration,) = workers.slowest([timed()])
    rounds = max(effort.rounds, min(_MOST_ROUNDS, int(_TOGETHER / duration)))
    own = effort.statistic([duration, *(timed() for _ in range(rounds - 1))])
    return workers.slowest([own])[0]


def _expected(smaller: _Sent, larger: _Sent, times: float) -> float:
    """The expected seconds for `times` the bytes of the larger exchange, by extrapolation."""
    slope = max(0.0, larger.seconds - smaller.seconds) / (larger.load.bytes - smaller.load.bytes)
    return larger.seconds + slope * larger.load.bytes * (times - 1)
