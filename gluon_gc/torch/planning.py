"""Measures, with PyTorch's exchange, what `python -m gluon_gc plan` needs, and reads models."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, Mapping, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..auto import probe, speed
from ..auto.choice import Measured, Topology
from ..compression import CompressionParams
from .automatic import ExchangingWorkers
from .byteps.runtime import init, shutdown
from .transport import new_exchange

_MACHINE = Path("/proc/sys/kernel/random/boot_id")  # differs between machines, not containers
_TENSORS, _ELEMENTS = 32, 2**18  # of a model that is larger than caches
_STEPS, _WARM_UP = 7, 2
_EFFORT = probe.Effort(longest=1.0, rounds=3, statistic=median)  # queues of slow links fill up


class Found(NamedTuple):
    """The measurement. Only worker 0 has it."""

    measured: Measured
    products: dict[int, float]  # seconds an element of PowerSGD's products, by rank
    topology: Topology
    workers: int
    sharing: int  # the most workers on one machine
    crowding: float  # of their processors, see `speed.crowding`
    copying: float  # seconds an element that DistributedDataParallel takes besides its exchange
    gpu: bool  # whether the workers may train on GPUs


def measure(compressors: Mapping[str, CompressionParams], ranks: tuple[int, ...]) -> Found | None:
    """Join the other workers of the job, and measure together. Return None unless rank is 0."""
    init()
    try:
        with closing(new_exchange(None)) as exchange:
            if exchange.workers == 1:
                return None
            machines = exchange.gather_objects(_MACHINE.read_text())
            workers = ExchangingWorkers(exchange)
            measured = workers.measured(compressors, _EFFORT)
            workers.join("speed of powersgd")
            products = workers.slowest([speed.of_low_rank(rank) for rank in ranks])
            workers.join("sharing of the processors")
            (crowding,) = workers.slowest([speed.crowding()])
            own_groups = [dist.new_group([rank]) for rank in range(exchange.workers)]
            (copying,) = workers.slowest([_copying(own_groups[exchange.rank])])
            sharing = max(map(machines.count, machines))
            gpu = torch.cuda.is_available()
            found = Found(
                measured,
                dict(zip(ranks, products)),
                workers.topology,
                exchange.workers,
                sharing,
                crowding,
                copying,
                gpu,
            )
            return found if exchange.rank == 0 else None
    finally:
        shutdown()


class _Sum(torch.nn.Module):
    """A model that does nothing but make gradients."""

    def __init__(self) -> None:
        super().__init__()
        tensors = (torch.nn.Parameter(torch.ones(_ELEMENTS)) for _ in range(_TENSORS))
        self.parameters_ = torch.nn.ParameterList(tensors)

    def forward(self) -> torch.Tensor:
        return sum((parameter * 1.0).sum() for parameter in self.parameters_)


def _copying(alone: dist.ProcessGroup) -> float:
    """Return the seconds of a processor that DistributedDataParallel takes for an element.

    `alone` is a group of this worker only, so that nothing is exchanged.
    """
    plain = _Sum()
    ddp = DistributedDataParallel(_Sum(), process_group=alone, gradient_as_bucket_view=True)
    seconds: dict[torch.nn.Module, list[float]] = {plain: [], ddp: []}
    for _ in range(_STEPS):
        for module, taken in seconds.items():
            start = time.process_time()
            module.zero_grad()
            module().backward()
            taken.append(time.process_time() - start)
    more = median(seconds[ddp][_WARM_UP:]) - median(seconds[plain][_WARM_UP:])
    return max(0.0, more) / (_TENSORS * _ELEMENTS)


def torchvision_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of one of torchvision's models.

    ModuleNotFoundError: torchvision is not installed. ValueError: it has no such model.
    """
    from torchvision import models

    with torch.device("meta"):
        model = models.get_model(name)  # its ValueError names the model
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def state_dict_shapes(path: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters in a file that `torch.save` has written.

    The file has a state_dict, or a dict of other values in which it is one. A parameter that has
    two names counts once.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle raises errors of many kinds about bytes that are no pickle
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"--model {path} is not a state_dict: {reason}") from None
    found: dict[Any, tuple[str, torch.Tensor]] = {}
    for name, tensor in _tensors(saved).items():
        if tensor.is_floating_point() and tensor.layout == torch.strided:
            memory = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape
            found.setdefault(memory, (name, tensor))
    return {name: tuple(tensor.shape) for name, tensor in found.values()}


def _tensors(saved: Any) -> dict[str, torch.Tensor]:
    """Return the largest dict of tensors among a saved value and the values in it."""
    candidates: list[Any] = [saved, *(saved.values() if isinstance(saved, Mapping) else ())]
    dicts = [
        {str(name): value for name, value in each.items() if isinstance(value, torch.Tensor)}
        for each in candidates
        if isinstance(each, Mapping)
    ]
    return max(dicts, key=lambda each: sum(t.numel() for t in each.values()), default={})
