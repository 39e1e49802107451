"""The choices of the compressor "auto", and its probe of the network between the workers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Callable, Mapping, Sequence

import numpy as np
import torch
from torch.futures import Future

from ..auto import probe, selection
from ..auto.algorithm import AutomaticAlgorithm, Decision
from ..auto.choice import Link, Measured, Topology
from ..auto.probe import USUAL, Effort
from ..compression import CompressionParams
from ..compression.auto import INNER, inner_params
from ..exchange.exchange import DeclaredTensor, Exchange
from ..exchange.job import Request
from ..exchange.plan import Tensor
from ..exchange.transport import Members
from .transport import Groups, gpu, new_exchange
from .transport.staging import Staged, resolving, wire_of


def chosen(tensors: Sequence[Tensor], groups: Groups) -> dict[str, str]:
    """Return the best compressor's name for each tensor, given in the order of backward.

    All workers of the process group call this.
    """
    with closing(new_exchange(*groups)) as exchange:
        names = selection.chosen(tensors, ExchangingWorkers(exchange))
        root_names = exchange.gather_objects(names)[0]
    return dict(zip((tensor.name for tensor in tensors), root_names))


def decided(
    automatic: AutomaticAlgorithm,
    tensors: Sequence[Tensor],
    shapes: Sequence[Sequence[int]],
    groups: Groups,
) -> Decision:
    """Return the decision for an algorithm. All workers of the process group call this."""
    with closing(new_exchange(*groups)) as exchange:
        workers = ExchangingWorkers(exchange)
        (seconds,) = workers.slowest([automatic.seconds])
        return exchange.gather_objects(automatic.choose(tensors, shapes, workers, seconds))[0]


class ExchangingWorkers(probe.Workers):
    """The workers of an exchange. `level`: they sum values only on one level of two."""

    def __init__(self, exchange: Exchange, level: Exchange | None = None) -> None:
        self._exchange, self._lane = exchange, (level or exchange).lane()
        count, local_size = exchange.workers, 1
        if exchange.machines is not None:
            count, local_size = exchange.machines.count, exchange.machines.local_size
        self.topology = Topology(count, 0, local_size) if count > 1 else None
        self.logs = exchange.rank == 0

    def measured(
        self, compressors: Mapping[str, CompressionParams], effort: Effort = USUAL
    ) -> Measured:
        machines = self._exchange.machines
        if machines is None:
            return super().measured(compressors, effort)
        topology = self.topology
        between = self._link(machines.across, replace(topology, local_size=1), effort)
        inside = self._link(machines.inside, topology.inside, effort)
        kernels = probe.speeds(self, {**compressors, INNER: inner_params()})
        return Measured(between, kernels, inside)

    def _link(self, members: Members, topology: Topology, effort: Effort) -> Link:
        """Return the link between members. All groups of members measure at the same time."""
        with closing(Exchange(members, self._exchange.arrays)) as level:
            return probe.link(ExchangingWorkers(self._exchange, level), topology, effort)

    def join(self, about: str) -> None:
        self._exchange.agree([("", {"probe": about})])

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        return np.max(self._exchange.gather_objects(list(seconds)), axis=0).tolist()

    def declare(self, tensors: Sequence[Tensor]) -> None:
        self._lane.declare(
            [
                DeclaredTensor(tensor, wire_of(torch.float32, tensor.params.fp16), gpu.CPU)
                for tensor in tensors
            ],
            minimum=0,
        )

    def exchange(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        values = torch.Generator(device="cpu").manual_seed(self._exchange.rank)
        gradients = {t.name: torch.randn(t.size, generator=values, device="cpu") for t in tensors}

        def average() -> None:
            future: Future[None] = Future()
            self._lane.start(Request(Staged(gradients)), resolving(future, lambda found: None))
            future.wait()

        return average
