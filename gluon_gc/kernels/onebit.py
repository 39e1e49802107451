"""onebit: compress, decompress, add, sum, and the residual."""

from __future__ import annotations

import ctypes
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
    declare(f"onebit_payload_bytes_{_suffix}", size, size)
    declare(
        f"onebit_compress_{_suffix}",
        ctypes.c_double,
        pointer,
        size,
        _value,
        integer,
        pointer,
        _value,
        pointer,
        pointer,
        _value,
        pointer,
        integer,
        integer,
    )
    declare(f"onebit_decompress_{_suffix}", None, pointer, size, pointer, integer, integer)
    declare(f"onebit_decompress_add_{_suffix}", None, pointer, size, pointer, integer, integer)
    declare(
        f"onebit_decompress_sum_{_suffix}",
        None,
        pointer,
        size,
        size,
        size,
        pointer,
        integer,
        integer,
    )
    declare(f"onebit_residual_{_suffix}", None, pointer, _value, size, pointer, integer)


def onebit_payload_bytes(n: int, dtype=np.float32) -> int:
    """The size of a onebit payload of n elements of ``dtype``."""
    return getattr(library, "gluon_gc_onebit_payload_bytes_" + suffix_of("dtype", dtype))(n)


def onebit_compress(
    gradient: np.ndarray,
    *,
    gradient_scale: float = 1.0,
    scaling: bool = True,
    momentum: Optional[np.ndarray] = None,
    mu: float = 0.0,
    corrected: Optional[np.ndarray] = None,
    scale: Optional[np.ndarray] = None,
    ratio: float = 1.0,
    payload: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> tuple[np.ndarray, float]:
    """Compress ``gradient * gradient_scale`` after Nesterov momentum and error feedback.

    Parameters
    ----------
    gradient : array of T, shape (n,)
    gradient_scale : float
    scaling : bool
        The payload's scale is the mean magnitude, not 1.
    momentum : array of T, shape (n,), optional
        Updated in place: m = mu m + g; g becomes g + mu m.
    mu : float
    corrected, scale : array of T, shapes (n,) and (1,), optional, together
        The p of the previous call and its scale, updated in place. The residual is e = p - D(p).
        Zeros to begin with; a residual e to go on from is corrected = e with scale = 0.
    ratio : float
        p = g + ratio e.
    payload : array of uint8, shape (onebit_payload_bytes(n, T),), optional
        Where to write.

    Returns
    -------
    payload : array of uint8
    magnitude : float
        The sum of abs(p) in float64; not finite where an element is not.

    Raises
    ------
    TypeError, ValueError
        An array has the wrong dtype, or the wrong size or layout.
    """
    suffix = suffix_of("gradient", gradient.dtype)
    n, dtype = gradient.size, gradient.dtype
    if (corrected is None) != (scale is None):
        raise ValueError("corrected and scale must be given together")
    payload = output_of("payload", payload, onebit_payload_bytes(n, dtype), np.uint8)
    magnitude = getattr(library, "gluon_gc_onebit_compress_" + suffix)(
        address_of("gradient", gradient, n, dtype),
        n,
        gradient_scale,
        scaling,
        address_of("momentum", momentum, n, dtype, writes=True),
        mu,
        address_of("corrected", corrected, n, dtype, writes=True),
        address_of("scale", scale, 1, dtype, writes=True),
        ratio,
        payload.ctypes.data,
        threads,
        isa_number(isa),
    )
    return payload, magnitude


def onebit_decompress(
    payload: np.ndarray,
    n: int,
    dtype=np.float32,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Decode a uint8 ``payload`` of n elements of ``dtype`` into ``out`` or a new array."""
    function = getattr(library, "gluon_gc_onebit_decompress_" + suffix_of("dtype", dtype))
    out = output_of("out", out, n, dtype)
    function(
        address_of("payload", payload, onebit_payload_bytes(n, dtype), np.uint8),
        n,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out


def onebit_decompress_add(
    payload: np.ndarray, out: np.ndarray, *, threads: int = 1, isa: Optional[str] = None
) -> np.ndarray:
    """Add what a uint8 ``payload`` decodes to to ``out``, an array of T, in place; returns it."""
    function = getattr(library, "gluon_gc_onebit_decompress_add_" + suffix_of("out", out.dtype))
    function(
        address_of("payload", payload, onebit_payload_bytes(out.size, out.dtype), np.uint8),
        out.size,
        address_of("out", out, out.size, out.dtype, writes=True),
        threads,
        isa_number(isa),
    )
    return out


def onebit_decompress_sum(
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
        One payload at the start of each row; stride is a multiple of 4.
    n : int
        Elements of each.
    dtype : float32 or float64
    out : array of ``dtype``, shape (n,), optional
        Where to write.
    """
    function = getattr(library, "gluon_gc_onebit_decompress_sum_" + suffix_of("dtype", dtype))
    count, stride = payloads.shape
    least = onebit_payload_bytes(n, dtype)
    if stride < least or stride % 4:
        raise ValueError(
            f"payloads must have rows of at least {least} bytes, a multiple of 4, got {stride}"
        )
    out = output_of("out", out, n, dtype)
    function(
        address_of("payloads", payloads, count * stride, np.uint8),
        stride,
        count,
        n,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out


def onebit_residual(
    corrected: np.ndarray,
    scale: np.ndarray,
    *,
    out: Optional[np.ndarray] = None,
    isa: Optional[str] = None,
) -> np.ndarray:
    """The residual e = p - D(p) of the feedback state that `onebit_compress` keeps."""
    n, dtype = corrected.size, corrected.dtype
    function = getattr(library, "gluon_gc_onebit_residual_" + suffix_of("corrected", dtype))
    address_of("scale", scale, 1, dtype)
    out = output_of("out", out, n, dtype)
    function(
        address_of("corrected", corrected, n, dtype), scale[0], n, out.ctypes.data, isa_number(isa)
    )
    return out
