"""Refuses a DistributedOptimizer for gradients that another object averages in the same backward.

Two CompressionStates may have the same parameter, because each DistributedDataParallel averages
gradients only after its own forward.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Collection, List

import torch

if TYPE_CHECKING:
    from .state import CompressionState

states: weakref.WeakSet[CompressionState] = weakref.WeakSet()
"""All CompressionStates of this process."""

distributed: weakref.WeakSet[CompressionState] = weakref.WeakSet()
"""Those of DistributedOptimizers."""


def require_single(
    parameters: Collection[torch.Tensor], others: weakref.WeakSet[CompressionState]
) -> None:
    """Raise ValueError if one of the other states is open and has one of these parameters."""
    if _shared(parameters, others):
        gc.collect()  # cycles keep a state that was dropped without close()
    shared = _shared(parameters, others)
    if shared:
        raise ValueError(
            "an earlier DistributedOptimizer or CompressionState averages the gradient of "
            f"parameter {shared[0]}: call close() of the earlier state, which is the "
            "compression_state of a DistributedOptimizer, first"
        )


def _shared(
    parameters: Collection[torch.Tensor], others: weakref.WeakSet[CompressionState]
) -> List[str]:
    """Return the names that open states have for these parameters."""
    ids = set(map(id, parameters))
    return [
        name
        for state in list(others)
        if not state.gradients.closed
        for name, parameter in state.parameters.items()
        if id(parameter) in ids
    ]
