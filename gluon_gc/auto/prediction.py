"""Predicts the step of each method for a model and a network, with the cost model of "auto".

The model of a step: DistributedDataParallel exchanges gradients in buckets, each when backward has
computed all of its tensors. Backward takes two thirds of a step, and as long for each tensor as for
any other. Exchanges hide behind backward on a GPU. A backward that keeps the processors busy hides
nothing: the threads of the exchange need them, too. Algorithms exchange after backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Iterator, Mapping, NamedTuple, Sequence, Tuple

from .. import env
from ..algorithms import parse as parse_algorithm
from ..algorithms.powersgd import PowerSGD
from ..compression import CompressionParams, parse, registry
from ..compression.auto import CANDIDATES, FP16, PLAIN, accuracy_of
from ..exchange import plan
from ..exchange.plan import Tensor
from .choice import Cost, Measured, Topology, cost_of
from .low_rank import factors

Shapes = Mapping[str, Tuple[int, ...]]
"""The shapes of a model's parameters, by name."""

RANKS = (1, 2, 4)  # of PowerSGD
_PERIODS = (10, 30, 100)  # H of local steps
_SETTINGS: dict[str, dict[str, Any]] = {
    **{name: params for name, params in CANDIDATES.items() if "compressor" in params},
    "randomk": {"compressor": "randomk", "k": 0.01},
    "dithering": {"compressor": "dithering", "k": 2},
    "dgc": {"compressor": "dgc", "k": 0.001},
}
"""compression_params of compressors. One that is missing here has its defaults."""
_BUCKETS = 2**20, 25 * 2**20  # bytes of DistributedDataParallel's first bucket, and of the others
_BACKWARD = 2 / 3  # of a step's time: backward computes two gradients where forward computes one


class Method(NamedTuple):
    """A way to average what a step computes.

    `name` is unique. `codec` is a key of `Job.measured.kernels`, or PLAIN or FP16.
    """

    name: str
    codec: str
    params: Mapping[str, Any]  # compression_params
    algorithm: Mapping[str, Any] | None = None

    @property
    def accuracy(self) -> str:
        """The strictest accuracy of "auto" that allows this method."""
        return "aggressive" if self.algorithm else accuracy_of(self.codec)

    @property
    def every(self) -> int:
        """The number of steps from one exchange to the next."""
        return (self.algorithm or {}).get("every", 1)


def methods(optimizer: str) -> list[Method]:
    """The methods for an optimizer, "sgd" or "adam".

    With Adam, only compressors that lose little accuracy compress gradients.
    """
    compressed = dict(_compressors())
    onebit = compressed["onebit"]
    kept = {"bytegrad", "blockwise"} if optimizer == "adam" else compressed.keys()
    found = [Method(PLAIN, PLAIN, {}), Method(FP16, FP16, CANDIDATES[FP16])]
    found += [Method(name, name, compressed[name]) for name in compressed if name in kept]
    for rank in RANKS:
        algorithm = {"name": "powersgd", "rank": rank}
        found.append(Method(f"powersgd {rank}", FP16, CANDIDATES[FP16], algorithm))
    if optimizer == "adam":
        algorithm = {"name": "onebit_adam", "freeze_step": 1000}
        found.append(Method("onebit_adam", "onebit", onebit, algorithm))
    for every in _PERIODS:
        algorithm = {"name": "local_steps", "every": every}
        found.append(Method(f"local_steps {every}, onebit", "onebit", onebit, algorithm))
    return found


def _compressors() -> Iterator[tuple[str, dict[str, Any]]]:
    """The compression_params of each compressor, by its name, with error feedback."""
    for name, kind in registry.items():
        params = _SETTINGS.get(name, {"compressor": name})
        if not kind.missing(params):
            yield name, params if kind.traits.accumulates else {**params, "ef": "vanilla"}


def codecs(several: Sequence[Method]) -> dict[str, CompressionParams]:
    """The compressors of these methods, for `Workers.measured`."""
    every = {method.codec: parse(method.params) for method in several}
    return {name: params for name, params in every.items() if params.compressor is not None}


@dataclass(frozen=True)
class Job:
    """What the predictions need to know of the workers and their network.

    `products` are the seconds an element of PowerSGD's products, by rank.
    """

    topology: Topology
    measured: Measured
    products: Mapping[int, float]
    crowding: float = 1.0  # of processors, see `speed.crowding`
    copying: float = 0.0  # seconds an element of DistributedDataParallel's copies in a step
    step_seconds: float = 0.0  # without an exchange; 0: only the exchange counts
    processors_busy: bool = True  # whether backward computes on the processors that compress

    @property
    def machine_rate(self) -> float:
        """Bytes per second of a machine's link. Its workers share it if they sum first."""
        return self.topology.local_size * self.measured.link.float32.rate

    def cost(self, tensor: Tensor, codec: str) -> Cost:
        """The cost of a tensor; if it travels uncompressed, so does its cost."""
        if codec != FP16 and not plan.travels_compressed(
            tensor, env.get("BYTEPS_MIN_COMPRESS_BYTES")
        ):
            codec, tensor = PLAIN, replace(tensor, params=tensor.params.uncompressed)
        partition = env.get("BYTEPS_PARTITION_BYTES")
        found = cost_of(tensor, codec, tensor.params, self.measured, self.topology, partition)
        return found._replace(processor=found.processor * self.crowding)


class Prediction(NamedTuple):
    """The prediction for a method: bytes and seconds of a step, on average."""

    method: Method
    bytes: float  # that a machine sends
    limit: float  # seconds that the link needs for these bytes
    exchange: float  # seconds of the exchange
    hidden: float  # seconds of it that backward hides
    step: float
    speedup: float = 1.0  # over no compression


def predictions(several: Sequence[Method], shapes: Shapes, job: Job) -> list[Prediction]:
    """Predict all methods. The first one has no compression. The result begins with the fastest."""
    found = [_predicted(method, shapes, job) for method in several]
    plain = found[0].step
    found = [each._replace(speedup=plain / each.step) for each in found]
    return sorted(found, key=lambda each: each.step)


def _predicted(method: Method, shapes: Shapes, job: Job) -> Prediction:
    params = parse(method.params)
    sizes = [(name, math.prod(shape)) for name, shape in shapes.items()]
    start = job.measured.link.cost(params).start
    algorithm, products = parse_algorithm(method.algorithm), 0.0
    rounds, elements = 1, sum(size for _, size in sizes)
    if isinstance(algorithm, PowerSGD):
        products = job.products[algorithm.rank] * elements * job.crowding
        sizes, rounds = factors(algorithm, shapes)
    costs = []
    for name, size in reversed(sizes):
        own = plan.params_for_dimensions(params, len(shapes[name]))
        costs.append(job.cost(Tensor(name, size, "float32", own), method.codec))
    computing, buckets = job.step_seconds, None
    if algorithm is not None:  # it works without DistributedDataParallel
        computing = max(0.0, computing - job.copying * elements * job.crowding)
    else:
        buckets = _buckets(list(zip((4 * size for _, size in reversed(sizes)), costs)))
        rounds = len(buckets)
    exchange = exposed = sum(cost.seconds for cost in costs) + rounds * start + products
    if buckets is not None and job.step_seconds and not job.processors_busy:
        exposed = _exposed(buckets, start, _BACKWARD * job.step_seconds)
    sent = job.topology.local_size * sum(cost.bytes for cost in costs)
    every = method.every
    return Prediction(
        method,
        sent / every,
        sent / job.machine_rate / every,
        exchange / every,
        (exchange - exposed) / every,
        computing + exposed / every,
    )


Bucket = Sequence[Tuple[int, Cost]]
"""The bytes and the cost of gradients, in the order of backward."""


def _exposed(buckets: Sequence[Bucket], start: float, backward: float) -> float:
    """The seconds by which the exchange of buckets lengthens a step.

    Each bucket takes `start` seconds besides those of its gradients.
    """
    end, done, count = 0.0, 0, sum(map(len, buckets))
    for bucket in buckets:
        done += len(bucket)
        ready = backward * done / count
        end = max(end, ready) + start + sum(cost.seconds for _, cost in bucket)
    return end - backward


def _buckets(costs: Bucket) -> list[Bucket]:
    """Group gradients into the buckets of DistributedDataParallel."""
    smaller, larger = _BUCKETS
    first, *_ = plan.batches(costs, lambda each: each[0], enough=smaller)
    return [first, *plan.batches(costs[len(first) :], lambda each: each[0], enough=larger)]
