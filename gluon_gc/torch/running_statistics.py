"""Averages the running statistics of layers such as BatchNorm over all workers."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .transport.gathering import agree, gather

_STATISTICS = ("running_mean", "running_var")


def average_statistics(
    model: torch.nn.Module, process_group: dist.ProcessGroup | None = None
) -> None:
    """Average the running means and variances of a model over all workers.

    Each worker updates them from its own batches. Call this on all workers before you validate or
    save. The workers wait for each other.

    Parameters
    ----------
    model : Module
        Its buffers with the names "running_mean" and "running_var" are averaged, as in BatchNorm.
    process_group : ProcessGroup, optional
        The workers. Default: all workers.

    Raises
    ------
    RuntimeError
        Another worker has other statistics. Nothing was changed.
    """
    buffers = dict(model.named_buffers())
    statistics = {n: b for n, b in buffers.items() if n.rpartition(".")[2] in _STATISTICS}
    facts = [(f"buffer {name}", {"shape": list(b.shape)}) for name, b in statistics.items()]
    call = "call average_statistics"
    agree(lambda mine, doing: gather(mine, doing, process_group), facts, call)
    if not statistics:
        return
    flat = [buffer.detach().double().cpu().reshape(-1) for buffer in statistics.values()]
    mean = torch.stack(gather(torch.cat(flat), call, process_group)).mean(dim=0)
    parts = mean.split([part.numel() for part in flat])
    for buffer, part in zip(statistics.values(), parts):
        buffer.detach().copy_(part.view(buffer.shape))
