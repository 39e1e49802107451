"""Products of matrices of low rank, and orthonormal rows.

A matrix has the shape (rows, columns). A left factor P has the shape (rank, rows), a right factor Q
has (rank, columns), and their product is ``P.T @ Q``. Arrays are float32 or float64, all of one
dtype. Results do not depend on `threads` and `isa`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .library import LowRank, address_of, isa_number, library


def accumulate(
    gradient: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    next_q: np.ndarray,
    total: np.ndarray,
    left: np.ndarray,
    *,
    threads: int = 1,
    isa: str | None = None,
) -> None:
    """``total = (total - p.T @ q) + gradient`` and ``left = next_q @ total.T``, in place."""
    shape = _shape("total", total, p, threads, isa)
    right = shape.rank, shape.columns
    library.gluon_gc_accumulate(
        ctypes.byref(shape),
        _address("gradient", gradient, total.shape, total.dtype),
        _address("p", p, p.shape, total.dtype),
        _address("q", q, right, total.dtype),
        _address("next_q", next_q, right, total.dtype),
        _address("total", total, total.shape, total.dtype, writes=True),
        _address("left", left, p.shape, total.dtype, writes=True),
    )


def project(
    p: np.ndarray,
    total: np.ndarray,
    right: np.ndarray,
    *,
    threads: int = 1,
    isa: str | None = None,
) -> None:
    """``right = p @ total``, in place."""
    shape = _shape("total", total, p, threads, isa)
    library.gluon_gc_project(
        ctypes.byref(shape),
        _address("p", p, p.shape, total.dtype),
        _address("total", total, total.shape, total.dtype),
        _address("right", right, (shape.rank, shape.columns), total.dtype, writes=True),
    )


def multiply(
    p: np.ndarray, q: np.ndarray, out: np.ndarray, *, threads: int = 1, isa: str | None = None
) -> None:
    """``out = p.T @ q``, in place."""
    shape = _shape("out", out, p, threads, isa)
    library.gluon_gc_multiply(
        ctypes.byref(shape),
        _address("p", p, p.shape, out.dtype),
        _address("q", q, (shape.rank, shape.columns), out.dtype),
        _address("out", out, out.shape, out.dtype, writes=True),
    )


def orthonormalise(x: np.ndarray) -> None:
    """Make the rows of a matrix orthonormal, in place.

    A row that depends on the rows before it becomes zeros. A NaN or an infinity gives NaNs. The
    arithmetic is float64, in an order that depends on the shape only.
    """
    _require_matrix("x", x)
    address = address_of("x", x, x.size, x.dtype, writes=True)
    library.gluon_gc_orthonormalise(address, *x.shape, x.itemsize)


def _shape(name: str, matrix: np.ndarray, p: np.ndarray, threads: int, isa: str | None) -> LowRank:
    _require_matrix(name, matrix)
    rows, columns = matrix.shape
    if p.ndim != 2 or p.shape[1] != rows:
        raise ValueError(f"p must have the shape (rank, {rows}), got {p.shape}")
    return LowRank(rows, columns, len(p), matrix.itemsize, threads, isa_number(isa))


def _require_matrix(name: str, x: np.ndarray) -> None:
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be float32 or float64, got {x.dtype}")
    if x.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got the shape {x.shape}")


def _address(
    name: str, array: np.ndarray, shape: tuple[int, int], dtype: Any, writes: bool = False
) -> int:
    if array.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {array.shape}")
    return address_of(name, array, array.size, dtype, writes)
