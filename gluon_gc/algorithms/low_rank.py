"""Products of a matrix and its factors, on the arrays of a framework.

Arrays in host memory use the kernels of `kernels.low_rank`, which explains the shapes. Arrays on a
GPU use the matrix products of the framework.
"""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np

from .. import kernels
from .base import Array
from .framework import Framework

_LARGE = 2**16
"""A matrix with fewer elements is computed by one thread."""


class LowRank:
    """The operations of PowerSGD.

    Parameters
    ----------
    framework : Framework
        Of the arrays.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    def basis(self, rows: Array, draw: Optional[Callable[[int], np.ndarray]] = None) -> Array:
        """Orthonormal rows that span the rows of a matrix, in a new array.

        Equal matrices give equal bits on all machines. `draw(i)` replaces row i if it has only
        zeros.
        """
        values = np.array(self._framework.to_numpy(rows), order="C")
        if draw is not None:
            for i in np.flatnonzero(~values.any(axis=1)):
                values[i] = draw(int(i))
        kernels.orthonormalise(values)
        return self._framework.from_numpy(values, rows)

    def accumulate(self, gradient: Array, p: Array, q: Array, next_q: Array, total: Array) -> Array:
        """Set ``total = (total - p.T @ q) + gradient``. The result is ``next_q @ total.T``."""
        multiply = self._framework.multiply
        if not self._framework.in_host_memory(total):
            total[:] = (total - multiply(p.T, q)) + gradient.reshape(total.shape)
            return multiply(next_q, total.T)
        left = 1.0 * p
        in_rows = np.ascontiguousarray(self._numpy(gradient)).reshape(total.shape)
        arrays = [self._numpy(array) for array in (p, q, next_q, total, left)]
        kernels.accumulate(in_rows, *arrays, threads=self._threads(in_rows))
        return left

    def project(self, p: Array, total: Array, q: Array) -> Array:
        """The product ``p @ total``, in a new array with the shape of q."""
        if not self._framework.in_host_memory(total):
            return self._framework.multiply(p, total)
        right = 1.0 * q
        matrix = self._numpy(total)
        threads = self._threads(matrix)
        kernels.project(self._numpy(p), matrix, self._numpy(right), threads=threads)
        return right

    def restore(self, p: Array, q: Array, gradient: Array) -> None:
        """Set the gradient to ``p.T @ q``."""
        if not self._framework.in_host_memory(gradient):
            gradient[:] = self._framework.multiply(p.T, q).reshape(gradient.shape)
            return
        given, shape = self._numpy(gradient), (p.shape[1], q.shape[1])
        product = given.reshape(shape) if given.flags.c_contiguous else np.empty(shape, given.dtype)
        threads = self._threads(product)
        kernels.multiply(self._numpy(p), self._numpy(q), product, threads=threads)
        if not given.flags.c_contiguous:
            given[:] = product.reshape(given.shape)

    def _numpy(self, array: Array) -> np.ndarray:
        return self._framework.to_numpy(array)

    def _threads(self, matrix: np.ndarray) -> int:
        return self._framework.threads if matrix.size >= _LARGE else 1
