"""BytePS's broadcasts, through torch.distributed's."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Tuple, Union

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from . import gathering
from .optimizer_hooks import param_groups

_Named = Tuple[str, torch.Tensor]


def broadcast_parameters(
    params: Union[Mapping[str, torch.Tensor], Iterable[Union[torch.Tensor, _Named]]],
    root_rank: int = 0,
    prefix: str = "",
) -> None:
    """Overwrite parameters with those of worker `root_rank`, bit for bit.

    Parameters
    ----------
    params : mapping, or iterable of (str, Tensor) or of Tensor
        As `model.state_dict()`, `model.named_parameters()` or `model.parameters()`; all workers
        have the same names, shapes and dtypes in the same order.
    root_rank : int
    prefix : str
        Accepted, without effect, as BytePS has it.

    Raises
    ------
    TypeError
        A parameter is no tensor.
    RuntimeError
        Workers differ in them; nothing has changed then.
    """
    _check_root(root_rank)
    given = enumerate(params.items() if isinstance(params, Mapping) else params)
    pairs = [one if isinstance(one, tuple) else (number, one) for number, one in given]
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
        whole = tensor.data.contiguous()
        dist.broadcast(whole.reshape(-1).view(torch.uint8), root_rank)
        if whole.data_ptr() != tensor.data_ptr():
            tensor.data.copy_(whole)


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int = 0, prefix: str = "Parameter."
) -> None:
    """Overwrite an optimizer's state, and the settings of its groups, with worker `root_rank`'s.

    Parameters
    ----------
    optimizer : Optimizer
        All workers have one of the same class, for the same parameters.
    root_rank : int
    prefix : str
        Accepted, without effect, as BytePS has it.

    Raises
    ------
    RuntimeError
        Workers differ in class or parameters; nothing has changed then.
    """
    _check_root(root_rank)
    groups = param_groups(optimizer)
    facts: List[Tuple[str, Mapping[str, Any]]] = [
        ("broadcast_optimizer_state", {"root_rank": root_rank, "class": type(optimizer).__name__})
    ]
    for number, group in enumerate(groups):
        shapes = [list(parameter.shape) for parameter in group["params"]]
        facts.append((f"the optimizer's group {number}", {"shapes": shapes}))
    _agree(facts, "broadcast_optimizer_state")
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if dist.get_rank() != root_rank and any(group["params"] for group in groups):
        optimizer.load_state_dict(state)  # moves tensors to where the parameters are


def broadcast_object(obj: Any, root_rank: int = 0, name: str = "") -> Any:
    """What worker `root_rank` calls this with, on all workers.

    Parameters
    ----------
    obj : object
        That can be pickled; of other workers it is not looked at.
    root_rank : int
    name : str
        Accepted, without effect, as BytePS has it.
    """
    _check_root(root_rank)
    box = [obj]
    dist.broadcast_object_list(box, root_rank)
    return box[0]


def _agree(facts: List[Tuple[str, Mapping[str, Any]]], call: str) -> None:
    gathering.agree(gathering.gather, facts, f"call {call}")


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < dist.get_world_size():
        raise ValueError(f"root_rank must be in [0, {dist.get_world_size()}), got {root_rank}")
