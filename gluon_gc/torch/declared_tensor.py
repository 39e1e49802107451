"""DeclaredTensor: the plan of a tensor to exchange, its dtype on the wire, and its device."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch

from ..compression import CompressionParams
from ..plan import Tensor
from . import staging


class DeclaredTensor(NamedTuple):
    """A tensor that workers will exchange."""

    plan: Tensor
    wire: torch.dtype  # of its values if they are sent uncompressed
    device: torch.device


def declared(
    name: str,
    like: torch.Tensor,
    params: CompressionParams,
    index: int,
    size: Optional[int] = None,  # a complex element counts as two
    called: str = "",
    on_nonfinite: str = "propagate",
) -> DeclaredTensor:
    """Return a declared tensor with the dtype and the device of another tensor."""
    size = staging.real_numel(like) if size is None else size
    dtype = staging.planned_dtype(like.dtype)
    plan = Tensor(name, size, dtype, params, index, called, on_nonfinite)
    return DeclaredTensor(plan, staging.wire_of(like.dtype, params.fp16), like.device)
