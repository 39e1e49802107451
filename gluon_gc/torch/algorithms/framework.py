"""PyTorch's side of `algorithms.framework.Framework`."""

from __future__ import annotations

from typing import Iterable

import numpy as np
import torch

from .. import gpu


class PyTorch:
    """Functions of PyTorch for algorithms."""

    @property
    def threads(self) -> int:
        """The number of threads for computations on the CPU."""
        return torch.get_num_threads()

    def in_host_memory(self, array: torch.Tensor) -> bool:
        """Return whether a tensor is in the memory of the CPU."""
        return gpu.in_host_memory(array.device)

    def to_numpy(self, array: torch.Tensor) -> np.ndarray:
        """Return the values as a NumPy array. It shares the memory of a tensor on the CPU."""
        return array.detach().cpu().numpy()

    def from_numpy(self, values: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor with these values on the device of `like`."""
        return torch.from_numpy(values).to(like.device)

    def multiply(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the product of two matrices."""
        return a @ b

    def wait(self, arrays: Iterable[torch.Tensor]) -> None:
        """Return at once: a failed average has raised its error before."""
