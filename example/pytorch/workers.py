"""Functions that the PyTorch examples share: arguments, wrapping a model, sums over workers."""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from common.algorithm_arguments import algorithm_of
from common.arguments import compression_params
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import gluon_gc.torch as bps


def add_checkpoint_arguments(parser: argparse.ArgumentParser, unit: str = "epoch") -> None:
    """Add the arguments for checkpoints and the device. Checkpoints are named UNIT-N."""
    group = parser.add_argument_group("checkpoints and device")
    group.add_argument("--save", default="", metavar="DIR", help="save checkpoints here")
    group.add_argument("--save-period", type=int, default=10, help=f"{unit}s between checkpoints")
    group.add_argument(
        "--resume", default="", metavar=f"DIR/{unit}-N", help="resume from this checkpoint"
    )
    group.add_argument(
        "--no-cuda", action="store_true", help="train on the CPU even if there is a GPU"
    )


def is_due(args: argparse.Namespace, done: int, last: int) -> bool:
    """Return whether a checkpoint is due after this number of epochs or steps, out of `last`."""
    return bool(args.save) and (done % args.save_period == 0 or done == last)


def device_of(args: argparse.Namespace) -> torch.device:
    """Return this worker's device: its own GPU if there is one, else the CPU."""
    if args.no_cuda or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(bps.local_rank())
    return torch.device("cuda", bps.local_rank())


def parallel(
    model: torch.nn.Module,
    optimizer: Optimizer,
    args: argparse.Namespace,
    grad_scaler: torch.amp.GradScaler | None = None,
) -> tuple[DistributedDataParallel, bps.CompressionState | None]:
    """Wrap a model so that its gradients are compressed according to the arguments.

    Returns
    -------
    tuple of DistributedDataParallel and CompressionState
        The state is None if nothing is compressed; then the model is plain PyTorch.
    """
    device = next(model.parameters()).device
    ddp = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    params = compression_params(args)
    if not (params["compressor"] or params["fp16"]):
        return ddp, None
    state = bps.CompressionState(
        model.named_parameters(), params, optimizer, grad_scaler=grad_scaler
    )
    ddp.register_comm_hook(state, bps.compression_hook)
    return ddp, state


def distributed(
    model: torch.nn.Module, optimizer: Optimizer, args: argparse.Namespace
) -> tuple[torch.nn.Module, Optimizer, Any]:
    """Like `parallel`, or with --algorithm, wrap the optimizer.

    Returns
    -------
    tuple of Module, Optimizer, and the state of the compression or of the algorithm, or None
    """
    algorithm = algorithm_of(args)
    if algorithm is None:
        ddp, state = parallel(model, optimizer, args)
        return ddp, optimizer, state
    optimizer = bps.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        compression_params=compression_params(args),
        algorithm=algorithm,
    )
    return model, optimizer, optimizer.compression_state


def summed(values: list[float], device: torch.device) -> list[float]:
    """Return the sums of numbers over all workers."""
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()


def traffic(model: torch.nn.Module, state: bps.CompressionState | None) -> tuple[float, float]:
    """Return the bytes per step that a worker pushes and pulls.

    Without compression, both are the size of the gradients.
    """
    if state is not None:
        total = state.compression_stats()["total"]
        return total["pushed_bytes"], total["pulled_bytes"]
    raw = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return float(raw), float(raw)


def print_checksum(model: torch.nn.Module) -> None:
    """Print 16 hexadecimal digits that depend on every bit of the model's parameters."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        values = parameter.detach().cpu().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().tobytes())
    who = f"rank {bps.rank()} of {bps.size()}"
    # One write call. Without buffers, as under torchrun, print writes the newline separately.
    sys.stdout.write(f"{who}: checksum of the parameters {digest.hexdigest()[:16]}\n")
