"""What "auto" chooses for each tensor: the least seconds that a simple model says.

The model: the tensors of a step are exchanged one after the other, in the order in which backward
makes them. Each takes the seconds of compressing, of its bytes on the busiest link, of its share of
messages, of aggregating and of decompressing; nothing overlaps but the exchange with backward. What
counts is how long after backward the last one ends.

References
----------
Wang et al., "Hi-Speed DNN Training with Espresso: Unleashing the Full Potential of Gradient
Compression with Near-Optimal Usage Strategies", EuroSys 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import plan
from ..compression import CompressionParams, candidates
from ..compression.auto import PLAIN
from ..plan import Tensor
from .speed import Speed

_MUST_GAIN = 0.05  # of a tensor's seconds, by what is less accurate
_MUST_GAIN_IN_ALL = 0.1  # of a step's, by compressing anything; measurements vary by as much
_MUST_GAIN_SECONDS = 1e-4
_MAY_COST = 0.01  # of a step's, to leave uncompressed what gains least
_BUFFERED = 0.5  # of the seconds a byte that the largest exchange took


class Load(NamedTuple):
    """The traffic of an exchange.

    Parameters
    ----------
    messages : float
        The number of messages. A small one, which travels with others, counts in part.
    bytes : int
    """

    messages: float
    bytes: int

    @classmethod
    def of(cls, chunks: Iterable[plan.Chunk]) -> Load:
        """The load that a worker sends for chunks."""
        sizes = [chunk.message_bytes for chunk in chunks]
        return cls(sum(min(1.0, size / plan.SMALL_BYTES) for size in sizes), sum(sizes))


class Way(NamedTuple):
    """The cost of messages of one kind.

    Parameters
    ----------
    message : float
        Seconds of a message in addition to those of its bytes.
    rate : float
        Bytes a second of the busiest link, in each direction, as far as processors reach it.
    """

    message: float
    rate: float

    @classmethod
    def fitted(cls, sent: Sequence[Tuple[Load, float]], passes: float) -> Way:
        """Fit the cost to exchanges of one kind, the smallest first, and their seconds.

        An exchange takes a fixed time, a time for each message, and a time for each byte. The three
        are fitted by least squares of relative errors. Terms that would be negative are left out,
        as are terms for which there are too few exchanges. The bytes of an exchange pass the
        busiest link `passes` times. Exchanges that are far quicker a byte than the largest one went
        into a buffer, and do not count.
        """
        pace = sent[-1][1] / sent[-1][0].bytes
        sent = [(load, took) for load, took in sent if took > _BUFFERED * pace * load.bytes]
        seconds = np.array([took for _, took in sent])
        shares = np.array([(1, *load) for load, _ in sent]) / seconds[:, None]
        fits = []
        for terms in ([2], [0, 2], [1, 2], [0, 1, 2])[: len(sent)]:
            fit = np.zeros(3)
            fit[terms] = np.linalg.lstsq(shares[:, terms], np.ones_like(seconds), rcond=None)[0]
            if fit.min() >= 0 and fit[2] > 0:
                fits.append((np.square(shares @ fit - 1).sum(), *fit.tolist()))
        _, _, message, byte = min(fits)
        return cls(message, passes / byte)


class Link(NamedTuple):
    """The connection between the workers.

    Parameters
    ----------
    float32, float16 : Way
        The cost of values that the engine sums.
    payload : Way
        The cost of payloads.
    """

    float32: Way
    float16: Way
    payload: Way

    @property
    def bits(self) -> float:
        """The rate of uncompressed values, in bits a second."""
        return 8 * self.float32.rate


@dataclass(frozen=True)
class Topology:
    """The numbers of machines and servers that exchange.

    Parameters
    ----------
    machines : int
        Machines; or workers, if each worker of a machine sends by itself.
    servers : int
        Servers; 0 if each machine aggregates a share.
    """

    machines: int
    servers: int

    @property
    def passes(self) -> float:
        """The number of times that a machine's bytes pass the busiest link, in each direction."""
        if self.servers:
            return max(1.0, self.machines / self.servers)
        return 2 * (self.machines - 1) / self.machines

    @property
    def aggregators(self) -> int:
        return self.servers or self.machines

    def compressing(self, speed: Speed) -> float:
        """Seconds that a compressor of this speed takes an element of float32 in an exchange."""
        aggregated = (self.machines * speed.add + speed.compress) / self.aggregators
        return speed.compress + aggregated + speed.decompress


@dataclass(frozen=True)
class Measured:
    """What a cluster was measured to be.

    Parameters
    ----------
    link : Link
    kernels : mapping
        The speed of each compressor, by the name that the choice has.
    """

    link: Link
    kernels: Mapping[str, Speed]


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Parameters
    ----------
    names : dict
        Of `compression.candidates`, by the name of each tensor.
    seconds, plain_seconds : float
        What the model says that a step takes with these, and without compression.
    """

    names: Dict[str, str]
    seconds: float
    plain_seconds: float


def choose(
    tensors: Sequence[Tensor],
    measured: Measured,
    topology: Topology,
    partition_bytes: int,
    min_compress_bytes: int = 0,
    ready: Optional[Sequence[float]] = None,
) -> Choice:
    """Choose for each tensor among the `candidates` of its params.

    Each gets what is fastest for it alone. Then, from the one that gains least, tensors go back to
    no compression for as long as the whole step takes no more than 1 % longer: small ones, and
    those whose exchange backward hides. What is in all less than 10 %, or 0.1 ms, faster than no
    compression is not chosen.

    Parameters
    ----------
    tensors : sequence of Tensor
        In the order of backward. Smaller ones than `min_compress_bytes` stay as they are.
    measured : Measured
    topology : Topology
    partition_bytes : int
        What tensors are cut into.
    ready : sequence of float, optional
        Seconds after the first one that each is made by backward; by default all are there.
    """
    ready = [0.0] * len(tensors) if ready is None else ready
    costs: List[Dict[str, float]] = [
        {
            name: seconds(tensor, name, params, measured, topology, partition_bytes)
            for name, params in candidates(tensor.params).items()
            if name == PLAIN or (tensor.floating and tensor.num_bytes >= min_compress_bytes)
        }
        for tensor in tensors
    ]
    names = [_fastest(of_tensor) for of_tensor in costs]

    def exposed(chosen: Sequence[str]) -> float:
        return _exposed([of_tensor[name] for of_tensor, name in zip(costs, chosen)], ready)

    plain = exposed([PLAIN] * len(tensors))
    most = exposed(names) * (1 + _MAY_COST)
    gains = [of_tensor[PLAIN] - of_tensor[name] for of_tensor, name in zip(costs, names)]
    for i in sorted(range(len(tensors)), key=gains.__getitem__):
        with_plain = [*names[:i], PLAIN, *names[i + 1 :]]
        if names[i] != PLAIN and exposed(with_plain) <= most:
            names = with_plain
    if exposed(names) > min(plain * (1 - _MUST_GAIN_IN_ALL), plain - _MUST_GAIN_SECONDS):
        names = [PLAIN] * len(tensors)
    by_tensor = {tensor.name: name for tensor, name in zip(tensors, names)}
    return Choice(by_tensor, exposed(names), plain)


def seconds(
    tensor: Tensor,
    name: str,
    params: CompressionParams,
    measured: Measured,
    topology: Topology,
    partition_bytes: int,
) -> float:
    """What a tensor takes, compressed with these params, which a choice calls `name`."""
    chunks = plan.cut([replace(tensor, params=params)], partition_bytes, 0)
    compressed = params.compressor is not None
    way = measured.link.payload if compressed else measured.link.float32
    if not compressed and chunks[0].dtype == "float16":
        way = measured.link.float16
    load = Load.of(chunks)
    total = load.messages * way.message + load.bytes * topology.passes / way.rate
    if compressed:
        words = np.dtype(plan.working_dtype(tensor.dtype)).itemsize / 4
        total += tensor.size * words * topology.compressing(measured.kernels[name])
    return total


def _fastest(costs: Mapping[str, float]) -> str:
    """The fastest, unless what is more accurate is nearly as fast."""
    best = PLAIN
    for name, cost in costs.items():
        if cost < costs[best] * (1 - _MUST_GAIN):
            best = name
    return best


def _exposed(costs: Sequence[float], ready: Sequence[float]) -> float:
    """Seconds from the end of backward to that of the last exchange."""
    end = 0.0
    for cost, at in zip(costs, ready):
        end = max(end, at) + cost
    return end - max(ready, default=0.0)
