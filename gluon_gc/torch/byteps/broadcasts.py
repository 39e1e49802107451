"""BytePS's broadcast functions, implemented with torch.distributed."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Tuple

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ..gradients.optimizer_hooks import param_groups, unwrapped
from ..transport import gathering
from . import runtime

_Named = Tuple[str, torch.Tensor]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor | _Named],
    root_rank: int = 0,
    prefix: str = "",
) -> None:
    """Overwrite parameters with those of worker `root_rank`, bit for bit.

    Parameters
    ----------
    params : mapping, or iterable of (str, Tensor) or of Tensor
        The result of `model.state_dict()`, `model.named_parameters()` or `model.parameters()`. All
        workers pass the same names, shapes and dtypes in the same order.
    root_rank : int
    prefix : str
        Accepted for BytePS's sake, without effect.

    Raises
    ------
    TypeError
        A parameter is not a tensor.
    RuntimeError
        The workers' parameters differ. Nothing was changed.
    """
    _check_root(root_rank)
    numbered = enumerate(params.items() if isinstance(params, Mapping) else params)
    pairs = [item if isinstance(item, tuple) else (number, item) for number, item in numbered]
    named = [(name, tensor) for name, tensor in pairs if tensor is not None]
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"parameter {name} must be a Tensor, got {type(tensor).__name__}")
    facts = [
        (f"parameter {name}", {"name": name, "shape": list(t.shape), "dtype": str(t.dtype)})
        for name, t in named
    ]
    _agree([("broadcast_parameters", {"root_rank": root_rank}), *facts], "broadcast_parameters")
    for _, tensor in named:
        contiguous = tensor.data.contiguous()
        dist.broadcast(contiguous.reshape(-1).view(torch.uint8), root_rank)
        if contiguous.data_ptr() != tensor.data_ptr():
            tensor.data.copy_(contiguous)


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int = 0, prefix: str = "Parameter."
) -> None:
    """Overwrite an optimizer's state and group settings with those of worker `root_rank`.

    Parameters
    ----------
    optimizer : Optimizer
        All workers pass an optimizer of the same class, with parameters of the same shapes.
    root_rank : int
    prefix : str
        Accepted for BytePS's sake, without effect.

    Raises
    ------
    RuntimeError
        The classes or the parameters differ. Nothing was changed.
    """
    _check_root(root_rank)
    optimizer = unwrapped(optimizer)
    groups = param_groups(optimizer)
    facts: list[tuple[str, Mapping[str, Any]]] = [
        ("broadcast_optimizer_state", {"root_rank": root_rank, "class": type(optimizer).__name__})
    ]
    for number, group in enumerate(groups):
        shapes = [list(parameter.shape) for parameter in group["params"]]
        facts.append((f"the optimizer's group {number}", {"shapes": shapes}))
    _agree(facts, "broadcast_optimizer_state")
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if dist.get_rank() != root_rank and any(group["params"] for group in groups):
        optimizer.load_state_dict(state)  # moves tensors to the parameters' device


def broadcast_object(obj: Any, root_rank: int = 0, name: str = "") -> Any:
    """Return the object of worker `root_rank`, on all workers.

    Parameters
    ----------
    obj : object
        It must be picklable. The objects of other workers are ignored.
    root_rank : int
    name : str
        Accepted for BytePS's sake, without effect.
    """
    _check_root(root_rank)
    box = [obj]
    dist.broadcast_object_list(box, root_rank)
    return box[0]


def _agree(facts: list[tuple[str, Mapping[str, Any]]], call: str) -> None:
    gathering.agree(gathering.gather, facts, f"call {call}")


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < runtime.size():
        raise ValueError(f"root_rank must be in [0, {runtime.size()}), got {root_rank}")
