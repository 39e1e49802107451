"""Gradients where compressors can work: flat, real, in float32 or float64."""

from __future__ import annotations

from typing import ContextManager, Dict, Mapping, Optional

import torch

from . import gpu


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real and the imaginary part of a complex dtype; other dtypes as they are."""
    return dtype.to_real() if dtype.is_complex else dtype


def real_numel(tensor: torch.Tensor) -> int:
    """The number of elements of a tensor, where a complex element is two."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, where a complex element is two; real tensors as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients are added up and compressed.

    It is float32 for 16 bits and float64 for integers; complex dtypes keep theirs.
    """
    if dtype.is_complex:
        return torch.complex64 if dtype.itemsize < 8 else dtype
    if not dtype.is_floating_point:
        return torch.float64
    return torch.float32 if dtype.itemsize < 4 else dtype


def planned_dtype(dtype: torch.dtype) -> str:
    """The dtype's name in a plan: bfloat16, which NumPy does not have, counts as float16."""
    dtype = real_dtype(dtype)
    return "float16" if dtype == torch.bfloat16 else str(dtype).rpartition(".")[2]


def wire_of(dtype: torch.dtype, fp16: bool) -> torch.dtype:
    """The dtype in which values of a dtype travel uncompressed."""
    dtype = real_dtype(dtype)
    if not dtype.is_floating_point:
        return torch.float64
    return torch.float16 if fp16 and dtype.itemsize > 2 else dtype


class Staged:
    """Tensors, and their values as compressors take them.

    Values are in the order of the tensor's indices, whatever its memory format, so that residuals
    belong to the same elements everywhere. A complex tensor's values are those of
    `torch.view_as_real`.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Dense, all on one device. They are read and written without autograd noticing: their
        version counters stay.

    Attributes
    ----------
    values : dict of str to Tensor of float32 or float64
        Flat, on that device; the tensors' own memory where that is possible.
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
        self._tensors = {name: tensor.data for name, tensor in tensors.items()}
        self.values: Dict[str, torch.Tensor] = {
            name: _flat(tensor).to(working_dtype(real_dtype(tensor.dtype)))
            for name, tensor in self._tensors.items()
        }
        self._ready = gpu.mark(self.device)

    def queue(self) -> ContextManager[Optional[int]]:
        """A `gpu.queue` where they are, behind the work that makes the values."""
        return gpu.queue(self.device, self._ready)

    def finish(self, scale: float) -> None:
        """Write scale * values to the tensors."""
        with self.queue():
            for name, tensor in self._tensors.items():
                values = self.values[name]
                if scale != 1.0:
                    values *= scale
                if values.data_ptr() != tensor.data_ptr():
                    tensor.copy_(shaped(values, tensor))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the order of their indices: a view where they lie in that order."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().reshape(-1)


def shaped(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Flat values as a tensor of the shape of another, complex if that is."""
    if not like.is_complex():
        return values.view(like.shape)
    return torch.view_as_complex(values.view(*like.shape, 2))
