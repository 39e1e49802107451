"""Gradients where compressors can work: flat, in float32 or float64."""

from __future__ import annotations

from typing import ContextManager, Dict, Mapping, Optional

import torch

from . import gpu


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
        Each flat and contiguous, all on one device.

    Attributes
    ----------
    values : dict of str to Tensor of float32 or float64
        On that device; the tensors' own memory where that is possible.
    device : torch.device

    Raises
    ------
    ValueError
        The tensors are on several devices.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        devices = {tensor.device: name for name, tensor in tensors.items()}
        if len(devices) > 1:
            where = ", ".join(f"'{name}' on {device}" for device, name in devices.items())
            raise ValueError(f"tensors that travel together must be on one device, got {where}")
        self.device = next(iter(devices), gpu.CPU)
        self._tensors = tensors
        self.values: Dict[str, torch.Tensor] = {
            name: tensor.detach().to(working_dtype(tensor.dtype))
            for name, tensor in tensors.items()
        }
        self._ready = gpu.mark(self.device)

    def queue(self) -> ContextManager[Optional[int]]:
        """A `gpu.queue` where they are, behind what makes the values."""
        return gpu.queue(self.device, self._ready)

    def finish(self, scale: float) -> None:
        """Write scale * values to the tensors."""
        with self.queue():
            for name, tensor in self._tensors.items():
                values = self.values[name]
                if scale != 1.0:
                    values *= scale
                if values.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(values)
