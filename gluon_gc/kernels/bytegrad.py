"""bytegrad: compress, the check of a payload, decompress, add, and sum."""

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
    declare(f"bytegrad_capacity_{_suffix}", size, size)
    declare(
        f"bytegrad_compress_{_suffix}",
        _value,
        *(pointer, size, _value),
        *(pointer, _value, pointer, _value, pointer, integer, integer),
    )
    _output = (pointer, integer, integer)
    declare(f"bytegrad_valid_{_suffix}", integer, pointer, size, size, integer)
    declare(f"bytegrad_decompress_{_suffix}", None, pointer, size, *_output)
    declare(f"bytegrad_decompress_add_{_suffix}", None, pointer, size, *_output)
    declare(f"bytegrad_decompress_sum_{_suffix}", None, pointer, size, size, size, *_output)


def bytegrad_capacity(n: int, dtype=np.float32) -> int:
    """The most bytes of a payload of n elements of ``dtype``."""
    return getattr(library, "gluon_gc_bytegrad_capacity_" + suffix_of("dtype", dtype))(n)


def bytegrad_compress(
    gradient: np.ndarray,
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
    """Compress ``gradient * gradient_scale`` after momentum and error feedback to bytes.

    Parameters
    ----------
    gradient : array of T, shape (n,)
    gradient_scale : float
    momentum : array of T, shape (n,), optional
        Updated in place: m = mu m + g; g becomes g + mu m.
    mu : float
    residual : array of T, shape (n,), optional
        Updated in place: e becomes p - D(p).
    ratio : float
        p = g + ratio e.
    payload : array of uint8, shape (bytegrad_capacity(n, T),), optional
        Where to write.

    Returns
    -------
    payload : array of uint8
        The first uint32 says how many bytes are in use; the others have no meaning.
    largest : float
        The largest abs(p); a NaN where an element is not finite.

    Raises
    ------
    TypeError, ValueError
        An array has the wrong dtype, or the wrong size or layout.
    """
    suffix = suffix_of("gradient", gradient.dtype)
    n, dtype = gradient.size, gradient.dtype
    payload = output_of("payload", payload, bytegrad_capacity(n, dtype), np.uint8)
    largest = getattr(library, "gluon_gc_bytegrad_compress_" + suffix)(
        address_of("gradient", gradient, n, dtype),
        n,
        gradient_scale,
        address_of("momentum", momentum, n, dtype, writes=True),
        mu,
        address_of("residual", residual, n, dtype, writes=True),
        ratio,
        payload.ctypes.data,
        threads,
        isa_number(isa),
    )
    return payload, largest


def bytegrad_valid(
    payload: np.ndarray, n: int, dtype=np.float32, *, isa: Optional[str] = None
) -> bool:
    """Whether a uint8 ``payload`` is as long as one of n elements with its lo and hi must be."""
    function = getattr(library, "gluon_gc_bytegrad_valid_" + suffix_of("dtype", dtype))
    address = address_of("payload", payload, payload.size, np.uint8)
    return bool(function(address, payload.size, n, isa_number(isa)))


def _check(payload: np.ndarray, n: int, dtype, isa: Optional[str]) -> None:
    if not bytegrad_valid(payload, n, dtype, isa=isa):
        raise ValueError(f"payload must be one of {n} elements")


def bytegrad_decompress(
    payload: np.ndarray,
    n: int,
    dtype=np.float32,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Decode a uint8 ``payload`` of n elements of ``dtype`` into ``out`` or a new array."""
    _check(payload, n, dtype, isa)
    function = getattr(library, "gluon_gc_bytegrad_decompress_" + suffix_of("dtype", dtype))
    out = output_of("out", out, n, dtype)
    function(payload.ctypes.data, n, out.ctypes.data, threads, isa_number(isa))
    return out


def bytegrad_decompress_add(
    payload: np.ndarray, out: np.ndarray, *, threads: int = 1, isa: Optional[str] = None
) -> np.ndarray:
    """Add what a uint8 ``payload`` decodes to to ``out``, in place; returns it."""
    _check(payload, out.size, out.dtype, isa)
    function = getattr(library, "gluon_gc_bytegrad_decompress_add_" + suffix_of("out", out.dtype))
    address = address_of("out", out, out.size, out.dtype, writes=True)
    function(payload.ctypes.data, out.size, address, threads, isa_number(isa))
    return out


def bytegrad_decompress_sum(
    payloads: np.ndarray,
    n: int,
    dtype=np.float32,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Add up what payloads decode to, the first row first.

    Parameters
    ----------
    payloads : array of uint8, shape (count, stride)
        One payload at the start of each row.
    n : int
        Elements of each.
    dtype : float32 or float64
    out : array of ``dtype``, shape (n,), optional
        Where to write.
    """
    function = getattr(library, "gluon_gc_bytegrad_decompress_sum_" + suffix_of("dtype", dtype))
    count, stride = payloads.shape
    address = address_of("payloads", payloads, count * stride, np.uint8)
    for payload in payloads:
        _check(payload, n, dtype, isa)
    out = output_of("out", out, n, dtype)
    function(address, stride, count, n, out.ctypes.data, threads, isa_number(isa))
    return out
