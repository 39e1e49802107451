"""The engines of benchmark/cluster.py on PyTorch: DistributedDataParallel and its hooks."""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

Shapes = Sequence[Tuple[int, ...]]

ONE_BUCKET = 100_000  # megabytes


def _init_process_group() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")


class _Backward(torch.autograd.Function):
    """A function whose backward returns given gradients without computing anything."""

    @staticmethod
    def forward(ctx: Any, gradients: Any, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        # PyTorch copies gradients that something else refers to.
        gradients, ctx.gradients = ctx.gradients, None
        return (None, *gradients)


class _Model(torch.nn.Module):
    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        tensors = (torch.nn.Parameter(torch.zeros(tuple(shape))) for shape in shapes)
        self.parameters_ = torch.nn.ParameterList(tensors)

    def forward(self, gradients: Any) -> torch.Tensor:
        return _Backward.apply(gradients, *self.parameters_)


class DDP:
    """DistributedDataParallel, plain or with one of PyTorch's communication hooks.

    PowerSGD uses a single bucket. With several, its hook aborts over Gloo: it starts collectives
    in callbacks, and the order of callbacks differs between workers.
    """

    def __init__(self, shapes: Shapes, options: Mapping[str, Any]) -> None:
        _init_process_group()
        rank = options.get("powersgd")
        self.model = _Model(shapes)
        one = {"bucket_cap_mb": ONE_BUCKET} if rank else {}
        self.ddp = DistributedDataParallel(self.model, gradient_as_bucket_view=True, **one)
        if rank:
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=rank, start_powerSGD_iter=2
            )
            self.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif "fp16" in options:
            self.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        self._flag = torch.zeros(1)

    def fill(self, values: Sequence[np.ndarray]) -> None:
        """Set the gradients of the next step."""
        self.model.zero_grad()
        self._loss = self.ddp([torch.from_numpy(array).clone() for array in values])

    def exchange(self) -> None:
        """Average the gradients."""
        self._loss.backward()

    def end_step(self) -> None:
        """Do nothing: the step is complete."""

    def barrier(self) -> None:
        dist.all_reduce(self._flag)


class _NoUpdate(torch.optim.SGD):
    """An optimizer that leaves the parameters as they are."""

    def step(self, closure: Any = None) -> None:
        return


class GluonGC(DDP):
    """gluon_gc's communication hook.

    Without an optimizer's step, the hook would undo each exchange.
    """

    def __init__(self, shapes: Shapes, options: Mapping[str, Any]) -> None:
        import gluon_gc.torch as bps

        super().__init__(shapes, {})
        self._optimizer = _NoUpdate(self.model.parameters(), 0.1, momentum=0.9)
        params = options["compression_params"]
        state = bps.CompressionState(self.model.named_parameters(), params, self._optimizer)
        self.ddp.register_comm_hook(state, bps.compression_hook)

    def exchange(self) -> None:
        """Average the gradients."""
        super().exchange()
        self._optimizer.step()


class Dropped(GluonGC):
    """The same hook. No optimizer uses the averages, so the next exchange undoes this one."""

    def exchange(self) -> None:
        """Average the gradients, which `fill` then drops."""
        DDP.exchange(self)


class Algorithm:
    """gluon_gc's DistributedOptimizer with an algorithm that averages gradients."""

    def __init__(self, shapes: Shapes, options: Mapping[str, Any]) -> None:
        import gluon_gc.torch as bps

        _init_process_group()
        self.model = _Model(shapes)
        named = self.model.named_parameters()
        inner = _NoUpdate(self.model.parameters(), 0.1)
        self.optimizer = bps.DistributedOptimizer(inner, named, **options)
        self._flag = torch.zeros(1)

    def fill(self, values: Sequence[np.ndarray]) -> None:
        """Set the gradients of the next step."""
        self.model.zero_grad()
        self._loss = self.model([torch.from_numpy(array).clone() for array in values])

    def exchange(self) -> None:
        """Average the gradients."""
        self._loss.backward()
        self.optimizer.step()

    def end_step(self) -> None:
        """Do nothing: the step is complete."""

    def barrier(self) -> None:
        dist.all_reduce(self._flag)


class HSDP(Algorithm):
    """fully_shard with a shard of the model on each worker of a machine, and replicas on machines.

    `compression_params`: gluon_gc compresses between the machines. None: plain HSDP.
    """

    def __init__(self, shapes: Shapes, options: Mapping[str, Any]) -> None:
        from torch.distributed import device_mesh, fsdp

        _init_process_group()
        inside = int(os.environ["LOCAL_WORLD_SIZE"])
        layout = dist.get_world_size() // inside, inside
        mesh = device_mesh.init_device_mesh("cpu", layout, mesh_dim_names=("replicate", "shard"))
        self.model = _Model(shapes)
        fsdp.fully_shard(self.model, mesh=mesh)
        self.optimizer = _NoUpdate(self.model.parameters(), 0.1)
        if options:
            import gluon_gc.torch as bps

            bps.compress_replicas(self.model, options["compression_params"])
        self._flag = torch.zeros(1)
