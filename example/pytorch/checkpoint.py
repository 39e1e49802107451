"""Saves and loads checkpoints: the model, the optimizer and the compression state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

import gluon_gc.torch as bps


def save(
    path: Path, done: int, model: torch.nn.Module, optimizer: Optimizer, compression: Any
) -> None:
    """Write a checkpoint into a folder. All workers must call this.

    Worker 0 saves the model and the optimizer last, so a folder with a model is complete.

    Parameters
    ----------
    path : Path
        The folder, which is created.
    done : int
        The number of epochs or steps done.
    model : Module
    optimizer : Optimizer
    compression : CompressionState or None
    """
    path.mkdir(parents=True, exist_ok=True)
    if compression is not None:
        torch.save(compression.state_dict(), path / f"compression-{bps.rank()}.pt")
    dist.barrier()
    if bps.rank() == 0:
        state = {
            "done": done,
            "workers": bps.size(),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, path / "model.part")
        (path / "model.part").replace(path / "model.pt")
    dist.barrier()


def load(folder: str, model: torch.nn.Module, optimizer: Optimizer, compression: Any) -> int:
    """Load a checkpoint. All workers must call this.

    If the number of workers has changed, the saved residuals and momentum are redistributed.

    Returns
    -------
    int
        The number of epochs or steps done.
    """
    path = Path(folder)
    state = torch.load(path / "model.pt", map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if compression is not None:
        same = state["workers"] == bps.size()
        ranks = [bps.rank()] if same else range(state["workers"])
        files = [path / f"compression-{rank}.pt" for rank in ranks]
        own = [torch.load(file, map_location="cpu", weights_only=True) for file in files]
        compression.load_state_dict(own[0] if same else own)
    return state["done"]
