"""Products of matrices of low rank, and orthonormal rows.

A matrix has the shape (rows, columns). A left factor P has the shape (rank, rows), a right factor Q
has (rank, columns), and their product is ``P.T @ Q``. Arrays are float32 or float64, all of one
dtype. Results do not depend on `threads` and `isa`.
"""

from __future__ import annotations

import ctypes

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
    shape = _shape(total, p, threads, isa)
    matrix, of_left, of_right = total.size, p.size, shape.rank * shape.columns
    library.gluon_gc_accumulate(
        ctypes.byref(shape),
        address_of("gradient", gradient, matrix, total.dtype),
        address_of("p", p, of_left, total.dtype),
        address_of("q", q, of_right, total.dtype),
        address_of("next_q", next_q, of_right, total.dtype),
        address_of("total", total, matrix, total.dtype, writes=True),
        address_of("left", left, of_left, total.dtype, writes=True),
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
    shape = _shape(total, p, threads, isa)
    library.gluon_gc_project(
        ctypes.byref(shape),
        address_of("p", p, p.size, total.dtype),
        address_of("total", total, total.size, total.dtype),
        address_of("right", right, shape.rank * shape.columns, total.dtype, writes=True),
    )


def multiply(
    p: np.ndarray, q: np.ndarray, out: np.ndarray, *, threads: int = 1, isa: str | None = None
) -> None:
    """``out = p.T @ q``, in place."""
    shape = _shape(out, p, threads, isa)
    library.gluon_gc_multiply(
        ctypes.byref(shape),
        address_of("p", p, p.size, out.dtype),
        address_of("q", q, shape.rank * shape.columns, out.dtype),
        address_of("out", out, out.size, out.dtype, writes=True),
    )


def orthonormalise(x: np.ndarray) -> None:
    """Make the rows of a matrix orthonormal, in place.

    A row that depends on the rows before it becomes zeros. A NaN or an infinity gives NaNs. The
    arithmetic is float64, in an order that depends on the shape only.
    """
    _require_floats(x)
    address = address_of("x", x, x.size, x.dtype, writes=True)
    library.gluon_gc_orthonormalise(address, *x.shape, x.itemsize)


def _shape(matrix: np.ndarray, p: np.ndarray, threads: int, isa: str | None) -> LowRank:
    _require_floats(matrix)
    (rows, columns), (rank, of_rows) = matrix.shape, p.shape
    if rows != of_rows:
        raise ValueError(f"p must have a column for each of the {rows} rows, got {of_rows}")
    return LowRank(rows, columns, rank, matrix.itemsize, threads, isa_number(isa))


def _require_floats(x: np.ndarray) -> None:
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"x must be float32 or float64, got {x.dtype}")
