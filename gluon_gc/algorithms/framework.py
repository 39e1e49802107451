"""The interface of a framework's arrays to an algorithm that needs more than their arithmetic."""

from __future__ import annotations

from typing import Iterable, Protocol

import numpy as np

from .base import Array


class Framework(Protocol):
    """Functions of the framework that owns the arrays of a step.

    Attributes
    ----------
    threads : int
        The number of threads for computations on the CPU.
    """

    threads: int

    def in_host_memory(self, array: Array) -> bool:
        """Whether an array is in the memory of the CPU."""

    def to_numpy(self, array: Array) -> np.ndarray:
        """The values as a NumPy array, which shares the memory of an array in host memory."""

    def from_numpy(self, values: np.ndarray, like: Array) -> Array:
        """A new array with these values, on the device of `like`. It may share their memory."""

    def multiply(self, a: Array, b: Array) -> Array:
        """The product of two matrices."""

    def wait(self, arrays: Iterable[Array]) -> None:
        """Wait until arrays are computed, and raise the error of an average that failed."""


class NumPy:
    """The `Framework` of NumPy arrays."""

    threads = 1

    def in_host_memory(self, array: Array) -> bool:
        return True

    def to_numpy(self, array: Array) -> np.ndarray:
        return array

    def from_numpy(self, values: np.ndarray, like: Array) -> Array:
        return values

    def multiply(self, a: Array, b: Array) -> Array:
        return a @ b

    def wait(self, arrays: Iterable[Array]) -> None:
        return
