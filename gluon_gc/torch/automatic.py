"""The choices of the compressor "auto", and its probe of the network between the workers."""

from __future__ import annotations

from contextlib import closing
from typing import Callable, Dict, List, Optional, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from ..auto import probe, selection
from ..auto.algorithm import AutomaticAlgorithm, Decision
from ..auto.choice import Topology
from ..exchange.exchange import DeclaredTensor, Exchange
from ..exchange.job import Request
from ..exchange.plan import Tensor
from .transport import gpu, new_exchange
from .transport.staging import Staged, resolving, wire_of


def chosen(tensors: Sequence[Tensor], group: Optional[dist.ProcessGroup]) -> Dict[str, str]:
    """Return the best compressor's name for each tensor, given in the order of backward.

    All workers of the group call this.
    """
    with closing(new_exchange(group)) as exchange:
        names = selection.chosen(tensors, ExchangingWorkers(exchange))
        root_names = exchange.gather_objects(names)[0]
    return dict(zip((tensor.name for tensor in tensors), root_names))


def decided(
    automatic: AutomaticAlgorithm,
    tensors: Sequence[Tensor],
    shapes: Sequence[Sequence[int]],
    group: Optional[dist.ProcessGroup],
) -> Decision:
    """Return the decision for an algorithm. All workers of the group call this."""
    with closing(new_exchange(group)) as exchange:
        workers = ExchangingWorkers(exchange)
        (seconds,) = workers.slowest([automatic.seconds])
        return exchange.gather_objects(automatic.choose(tensors, shapes, workers, seconds))[0]


class ExchangingWorkers(probe.Workers):
    """The workers of an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._lane = exchange, exchange.lane()
        machines = exchange.workers if exchange.machines is None else exchange.machines.count
        self.topology = Topology(machines, servers=0) if machines > 1 else None
        self.logs = exchange.rank == 0

    def join(self, about: str) -> None:
        self._exchange.agree([("", {"probe": about})])

    def slowest(self, seconds: Sequence[float]) -> List[float]:
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
