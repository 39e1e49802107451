"""Chooses a compressor for each gradient, so that a cost model predicts the shortest step.

The model: gradients are exchanged one after the other, in the order in which backward computes
them. The exchange of one gradient takes

    compress + messages * time a message + bytes / rate of the busiest link + aggregate + decompress

seconds. If the workers of a machine sum first, they share this, and the time for the link inside
the machine is added. Exchanges overlap with backward, but not with each other. The choice minimises
the time from the end of backward to the end of the last exchange.

References
----------
Wang et al., "Hi-Speed DNN Training with Espresso: Unleashing the Full Potential of Gradient
Compression with Near-Optimal Usage Strategies", EuroSys 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from ..compression import CompressionParams, candidates
from ..compression.auto import INNER, PLAIN, outer_name
from ..exchange import plan
from ..exchange.plan import Tensor
from .speed import Speed

_MUST_GAIN = 0.05  # share of a tensor's time that a less accurate candidate must save
_MUST_GAIN_IN_ALL = 0.1  # share of a step's time that compression must save; noise is as large
_MUST_GAIN_SECONDS = 1e-4  # seconds of a step that compression must save
_MAY_COST = 0.01  # share of a step's time that leaving tensors uncompressed may cost
_BUFFERED = 0.5  # exchanges below this share of the largest one's time a byte are ignored


class Load(NamedTuple):
    """The traffic of an exchange, from one worker in one direction."""

    messages: float  # a chunk smaller than `plan.SMALL_BYTES` shares one: it counts as a fraction
    bytes: int

    @classmethod
    def of(cls, chunks: Iterable[plan.Chunk]) -> Load:
        sizes = [chunk.message_bytes for chunk in chunks]
        return cls(sum(min(1.0, size / plan.SMALL_BYTES) for size in sizes), sum(sizes))


class TrafficCost(NamedTuple):
    """The cost of one kind of traffic."""

    message: float  # seconds for each message, in addition to the time for its bytes
    rate: float  # bytes/s of the busiest link in each direction, or less if processors are slower
    start: float = 0.0  # seconds for each exchange of many tensors, in addition to its messages

    @classmethod
    def fitted(cls, sent: Sequence[tuple[Load, float]], passes: float) -> TrafficCost:
        """Fit the cost to measured exchanges of one kind, the smallest first, with their seconds.

        The model is a fixed time, plus a time for each message, plus a time for each byte. The
        three terms are fitted by least squares of relative errors. A term is left out if it would
        be negative, or if there are too few exchanges to fit it. Exchanges that take far less time
        a byte than the largest one are ignored, because a buffer took their bytes. The bytes of an
        exchange pass the busiest link `passes` times.
        """
        byte_seconds = sent[-1][1] / sent[-1][0].bytes
        sent = [(load, took) for load, took in sent if took > _BUFFERED * byte_seconds * load.bytes]
        seconds = np.array([took for _, took in sent])
        shares = np.array([(1, *load) for load, _ in sent]) / seconds[:, None]
        fits = []
        for terms in ([2], [0, 2], [1, 2], [0, 1, 2])[: len(sent)]:
            fit = np.zeros(3)
            fit[terms] = np.linalg.lstsq(shares[:, terms], np.ones_like(seconds), rcond=None)[0]
            if fit.min() >= 0 and fit[2] > 0:
                fits.append((np.square(shares @ fit - 1).sum(), *fit.tolist()))
        _, start, message, byte = min(fits)
        return cls(message, passes / byte, start)


class Link(NamedTuple):
    """The cost of uncompressed values, which the engine sums, and of payloads."""

    float32: TrafficCost
    float16: TrafficCost
    payload: TrafficCost

    @property
    def bits(self) -> float:
        """The rate of uncompressed values, in bits per second."""
        return 8 * self.float32.rate

    def cost(self, params: CompressionParams) -> TrafficCost:
        """The cost of a tensor of floats with these params."""
        if params.compressor is not None:
            return self.payload
        return self.float16 if params.fp16 else self.float32


@dataclass(frozen=True)
class Topology:
    machines: int  # the number of workers, if each worker sends its own gradients
    servers: int  # 0 if each machine aggregates a share of the gradients
    local_size: int = 1
    """The number of workers on each machine that sum gradients on a link of their own, and then
    share the exchange between machines."""

    @property
    def passes(self) -> float:
        """How many times a machine's bytes pass the busiest link, in each direction."""
        if self.servers:
            return max(1.0, self.machines / self.servers)
        return 2 * (self.machines - 1) / self.machines

    @property
    def aggregators(self) -> int:
        return self.servers or self.machines

    @property
    def inside(self) -> Topology:
        """The workers of a machine, as an exchange of their own."""
        return Topology(self.local_size, servers=0)

    def passes_of(self, params: CompressionParams) -> float:
        """`passes` of a tensor with these params: all machines gather all payloads if it is so."""
        if params.exchange == "two_way":
            return self.passes
        return self.passes * self.machines if self.servers else self.machines - 1.0

    def compressing(self, speed: Speed, exchange: str = "two_way") -> float:
        """Seconds to compress, aggregate and decompress one element of float32."""
        if exchange == "gather":
            return speed.compress / self.local_size + self.machines * speed.add
        aggregated = (self.machines * speed.add + speed.compress) / self.aggregators
        return (speed.compress + aggregated) / self.local_size + speed.decompress


@dataclass(frozen=True)
class Measured:
    link: Link  # between machines
    kernels: Mapping[str, Speed]  # of each compressor, by the name of the candidate
    inner: Link | None = None  # inside a machine, if its workers sum their gradients first


@dataclass(frozen=True)
class Choice:
    names: dict[str, str]  # of the candidate for each tensor, by its name
    seconds: float  # predicted from the end of backward to the end of the last exchange
    plain_seconds: float  # the same without compression


def choose(
    tensors: Sequence[Tensor],
    measured: Measured,
    topology: Topology,
    partition_bytes: int,
    min_compress_bytes: int = 0,
    ready: Sequence[float] | None = None,
) -> Choice:
    """Choose for each tensor among the `candidates` of its params.

    1. Each tensor gets the candidate that is fastest for this tensor alone.
    2. Tensors are set back to no compression, the one with the smallest gain first, if the step
       takes at most 1 % longer. These are small tensors, and tensors whose exchange ends during
       backward.
    3. If the step is less than 10 % or less than 0.1 ms faster than without compression, nothing is
       compressed.

    Tensors are in the order in which backward computes them, each `ready` this many seconds after
    the first one (by default all at the start). Those under `min_compress_bytes` are not
    compressed.
    """
    ready = [0.0] * len(tensors) if ready is None else ready
    costs: list[dict[str, float]] = [
        {
            name: cost_of(tensor, name, params, measured, topology, partition_bytes).seconds
            for name, params in candidates(tensor.params, topology.local_size > 1).items()
            if name == PLAIN or (tensor.floating and tensor.num_bytes >= min_compress_bytes)
        }
        for tensor in tensors
    ]
    names = [fastest(tensor_costs) for tensor_costs in costs]

    def exposed(chosen: Sequence[str]) -> float:
        """Seconds from the end of backward to the end of the last exchange."""
        end = 0.0
        for tensor_costs, name, at in zip(costs, chosen, ready):
            end = max(end, at) + tensor_costs[name]
        return end - max(ready, default=0.0)

    plain = exposed([PLAIN] * len(tensors))
    limit = exposed(names) * (1 + _MAY_COST)
    gains = [tensor_costs[PLAIN] - tensor_costs[name] for tensor_costs, name in zip(costs, names)]
    for i in sorted(range(len(tensors)), key=gains.__getitem__):
        with_plain = [*names[:i], PLAIN, *names[i + 1 :]]
        if names[i] != PLAIN and exposed(with_plain) <= limit:
            names = with_plain
    if not gains_enough(exposed(names), plain):
        names = [PLAIN] * len(tensors)
    by_tensor = {tensor.name: name for tensor, name in zip(tensors, names)}
    return Choice(by_tensor, exposed(names), plain)


class Cost(NamedTuple):
    """The predicted cost of the exchange of a tensor."""

    processor: float  # seconds to compress, aggregate and decompress
    network: float  # seconds for messages and bytes
    bytes: float  # that a machine sends

    @property
    def seconds(self) -> float:
        return self.processor + self.network


def cost_of(
    tensor: Tensor,
    name: str,
    params: CompressionParams,
    measured: Measured,
    topology: Topology,
    partition_bytes: int,
) -> Cost:
    """The predicted cost of the exchange of a tensor with the candidate `name`, `params`."""
    chunks = plan.cut([replace(tensor, params=params)], partition_bytes, 0)
    traffic = measured.link.cost(params if tensor.floating else params.uncompressed)
    load, share = Load.of(chunks), 1 / topology.local_size if params.hierarchical else 1.0
    sent = share * load.bytes * topology.passes_of(params)
    network = share * load.messages * traffic.message + sent / traffic.rate
    words = tensor.size * np.dtype(plan.working_dtype(tensor.dtype)).itemsize / 4
    if measured.inner is not None and params.hierarchical:
        network += _inside(words, load.bytes, params, measured, topology)
    if params.compressor is None:
        return Cost(0.0, network, sent)
    compressing = topology.compressing(measured.kernels[outer_name(name)], params.exchange)
    return Cost(words * compressing, network, sent)


def _inside(
    words: float,
    answer_bytes: int,
    params: CompressionParams,
    measured: Measured,
    topology: Topology,
) -> float:
    """The predicted seconds inside a machine, for this number of float32 values.

    They travel to the workers that exchange their sum, and the answer of other machines back.
    """
    link, half_passes = measured.inner, topology.inside.passes / 2
    back = link.float32 if params.compressor is None else link.payload
    seconds = answer_bytes * half_passes / back.rate
    if params.inner is None:
        return seconds + 4 * words * half_passes / link.float32.rate
    speed = measured.kernels[INNER]
    return seconds + words * (half_passes / link.payload.rate + speed.compress + speed.add)


def fastest(costs: Mapping[str, float]) -> str:
    """The fastest candidate, unless a more accurate one is nearly as fast."""
    best = PLAIN
    for name, cost in costs.items():
        if cost < costs[best] * (1 - _MUST_GAIN):
            best = name
    return best


def gains_enough(seconds: float, plain_seconds: float) -> bool:
    limit = min(plain_seconds * (1 - _MUST_GAIN_IN_ALL), plain_seconds - _MUST_GAIN_SECONDS)
    return seconds <= limit
