"""randomk: compress, decompress and add, drawing from a stream."""

from __future__ import annotations

from typing import Optional

import numpy as np

from .library import (
    FLOATS,
    address_of,
    declare,
    integer,
    isa_number,
    library,
    output_of,
    pointer,
    size,
    suffix_of,
)

for _suffix, _value in FLOATS.values():
    declare(
        f"randomk_compress_{_suffix}",
        _value,
        pointer,
        size,
        size,
        _value,
        pointer,
        _value,
        pointer,
        _value,
        pointer,
        pointer,
        integer,
        integer,
    )
    declare(
        f"randomk_decompress_{_suffix}",
        None,
        pointer,
        size,
        size,
        pointer,
        pointer,
        integer,
        integer,
    )
    declare(
        f"randomk_decompress_add_{_suffix}", None, pointer, size, size, pointer, pointer, integer
    )


def randomk_compress(
    gradient: np.ndarray,
    k: int,
    stream: np.ndarray,
    *,
    gradient_scale: float = 1.0,
    momentum: Optional[np.ndarray] = None,
    mu: float = 0.0,
    residual: Optional[np.ndarray] = None,
    ratio: float = 1.0,
    payload: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> tuple[np.ndarray, float]:
    """Compress ``gradient * gradient_scale`` after momentum and error feedback to k draws of it.

    Parameters
    ----------
    gradient : array of T, shape (n,)
    k : int
        How many elements are drawn; it may exceed n.
    stream : array of uint64, shape (2,)
        The state of the generator, updated in place: k draws further on, unless n is 0.
    gradient_scale : float
    momentum : array of T, shape (n,), optional
        Updated in place: m = mu m + g; g becomes g + mu m.
    mu : float
    residual : array of T, shape (n,), optional
        Updated in place: e becomes p with zeros where it was drawn. Without it, the values that are
        sent are multiplied by n / k.
    ratio : float
        p = g + ratio e.
    payload : array of T, shape (k,), optional
        Where to write.

    Returns
    -------
    payload : array of T
        The values in the order in which they were drawn.
    check : float
        0, or NaN if an element of p is not finite; without momentum and residual, only those that
        are sent are looked at.

    Raises
    ------
    TypeError, ValueError
        An array has the wrong dtype, or the wrong size or layout.
    """
    suffix = suffix_of("gradient", gradient.dtype)
    n, dtype = gradient.size, gradient.dtype
    payload = output_of("payload", payload, k, dtype)
    check = getattr(library, "gluon_gc_randomk_compress_" + suffix)(
        address_of("gradient", gradient, n, dtype),
        n,
        k,
        gradient_scale,
        address_of("momentum", momentum, n, dtype, writes=True),
        mu,
        address_of("residual", residual, n, dtype, writes=True),
        ratio,
        address_of("stream", stream, 2, np.uint64, writes=True),
        payload.ctypes.data,
        threads,
        isa_number(isa),
    )
    return payload, check


def randomk_decompress(
    payload: np.ndarray,
    n: int,
    start: np.ndarray,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Decode a payload.

    Parameters
    ----------
    payload : array of T, shape (k,)
    n : int
        The number of elements that were drawn from.
    start : array of uint64, shape (2,)
        The stream as it was before `randomk_compress`.
    out : array of T, shape (n,), optional
        Where to write.
    """
    dtype = payload.dtype
    function = getattr(library, "gluon_gc_randomk_decompress_" + suffix_of("payload", dtype))
    out = output_of("out", out, n, dtype)
    function(
        address_of("payload", payload, payload.size, dtype),
        n,
        payload.size,
        address_of("start", start, 2, np.uint64),
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out


def randomk_decompress_add(
    payload: np.ndarray, out: np.ndarray, start: np.ndarray, *, isa: Optional[str] = None
) -> np.ndarray:
    """Add what `randomk_decompress` would give to ``out``, in place; returns it."""
    function = getattr(library, "gluon_gc_randomk_decompress_add_" + suffix_of("out", out.dtype))
    function(
        address_of("payload", payload, payload.size, out.dtype),
        out.size,
        payload.size,
        address_of("start", start, 2, np.uint64),
        address_of("out", out, out.size, out.dtype, writes=True),
        isa_number(isa),
    )
    return out
