"""BytePS's broadcasts, through torch.distributed's."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Tuple, Union

import torch
import torch.distributed as dist
from torch.optim import Optimizer


def broadcast_parameters(
    params: Union[Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]]],
    root_rank: int = 0,
) -> None:
    """Overwrite parameters with those of worker `root_rank`, bit for bit.

    Parameters
    ----------
    params : mapping or iterable of (str, Tensor)
        As `model.state_dict()` or `model.named_parameters()`; all workers have the same.
    root_rank : int
    """
    _check_root(root_rank)
    pairs = params.items() if isinstance(params, Mapping) else params
    for _, tensor in pairs:
        if tensor is None:
            continue
        whole = tensor.detach().contiguous()
        dist.broadcast(whole, root_rank)
        if whole.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(whole)


def broadcast_optimizer_state(optimizer: Optimizer, root_rank: int = 0) -> None:
    """Overwrite an optimizer's state, and the settings of its groups, with worker `root_rank`'s.

    Parameters
    ----------
    optimizer : Optimizer
        All workers have one of the same parameters.
    root_rank : int
    """
    device = next((p.device for group in optimizer.param_groups for p in group["params"]), None)
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if dist.get_rank() != root_rank and device is not None:
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


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < dist.get_world_size():
        raise ValueError(f"root_rank must be in [0, {dist.get_world_size()}), got {root_rank}")
