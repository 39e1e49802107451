"""DeclaredTensor: the plan of a tensor to exchange, its dtype on the wire, and its device."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch

from ..compression import CompressionParams
from ..plan import Tensor
from . import staging


class DeclaredTensor(NamedTuple):
    """A tensor that workers will exchange.

    Parameters
    ----------
    plan : Tensor
    wire : torch.dtype
        The dtype of its values if they are sent uncompressed.
    device : torch.device
    """

    plan: Tensor
    wire: torch.dtype
    device: torch.device


def declared(
    name: str,
    like: torch.Tensor,
    params: CompressionParams,
    index: int,
    size: Optional[int] = None,
    called: str = "",
    on_nonfinite: str = "propagate",
) -> DeclaredTensor:
    """Return a declared tensor with the dtype and the device of another tensor.

    Parameters
    ----------
    name : str
    like : Tensor
    params : CompressionParams
    index, called, on_nonfinite
        See `plan.Tensor`.
    size : int, optional
        The number of elements; a complex element counts as two. Default: the size of `like`.
    """
    size = staging.real_numel(like) if size is None else size
    dtype = staging.planned_dtype(like.dtype)
    plan = Tensor(name, size, dtype, params, index, called, on_nonfinite)
    return DeclaredTensor(plan, staging.wire_of(like.dtype, params.fp16), like.device)
