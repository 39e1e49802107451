"""Gradients where compressors can work: in the host's memory, in float32 or float64."""

from __future__ import annotations

from typing import Dict, Mapping

import numpy as np
import torch


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients are compressed: float32 for 16 bits, float64 for integers."""
    if not dtype.is_floating_point:
        return torch.float64
    return torch.float32 if dtype.itemsize < 4 else dtype


def planned_dtype(dtype: torch.dtype) -> str:
    """What a plan knows a dtype as: bfloat16, which NumPy has not, is another float of 16 bits."""
    return "float16" if dtype == torch.bfloat16 else str(dtype).rpartition(".")[2]


def wire_of(dtype: torch.dtype, fp16: bool) -> torch.dtype:
    """The dtype in which values of a dtype travel uncompressed."""
    if not dtype.is_floating_point:
        return torch.float64
    return torch.float16 if fp16 and dtype.itemsize > 2 else dtype


class Staged:
    """Tensors, and their values as compressors take them.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Each flat and contiguous, on any device.

    Attributes
    ----------
    values : dict of str to array of float32 or float64
        The tensors' own memory where that is possible.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._staged: Dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            self._staged[name] = tensor.detach().to("cpu", working_dtype(tensor.dtype))
        self.values: Dict[str, np.ndarray] = {
            name: staged.numpy() for name, staged in self._staged.items()
        }

    def finish(self, scale: float) -> None:
        """Write scale * values to the tensors."""
        for name, tensor in self._tensors.items():
            staged = self._staged[name]
            if scale != 1.0:
                staged *= scale
            if staged.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(staged)
