"""dithering: compress, the check of a payload, decompress, add, and sum."""

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
from .stream import stream_address

_levels = ctypes.c_uint32
declare("dithering_allows", integer, size, integer)
for _suffix, _value in FLOATS.values():
    declare(f"dithering_capacity_{_suffix}", size, size, size)
    declare(
        f"dithering_compress_{_suffix}",
        ctypes.c_double,
        *(pointer, size, _value, _levels, integer, integer, integer),
        *(pointer, _value, pointer, _value, pointer, pointer, integer, integer),
    )
    _payload = (size, _levels, integer)
    _output = (pointer, integer, integer)
    declare(f"dithering_valid_{_suffix}", integer, pointer, size, *_payload, integer)
    declare(f"dithering_decompress_{_suffix}", None, pointer, *_payload, *_output)
    declare(f"dithering_decompress_add_{_suffix}", None, pointer, *_payload, *_output)
    declare(f"dithering_decompress_sum_{_suffix}", None, pointer, size, size, *_payload, *_output)


def dithering_allows(levels: int, natural: bool = False) -> bool:
    """Whether there can be so many levels: 1 to 31 if natural, else 1 to 2**23 - 1."""
    return levels > 0 and bool(library.gluon_gc_dithering_allows(levels, natural))


def _check_levels(levels: int, natural: bool) -> None:
    if not dithering_allows(levels, natural):
        most = "31 (natural)" if natural else "2**23 - 1"
        raise ValueError(f"levels must be from 1 to {most}, got {levels}")


def dithering_capacity(n: int, levels: int, dtype=np.float32) -> int:
    """The most bytes of a payload of n elements of ``dtype``."""
    function = getattr(library, "gluon_gc_dithering_capacity_" + suffix_of("dtype", dtype))
    return function(n, levels)


def dithering_compress(
    gradient: np.ndarray,
    levels: int,
    stream: np.ndarray,
    *,
    natural: bool = False,
    l2: bool = False,
    fixed_width: bool = False,
    gradient_scale: float = 1.0,
    momentum: Optional[np.ndarray] = None,
    mu: float = 0.0,
    residual: Optional[np.ndarray] = None,
    ratio: float = 1.0,
    payload: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> tuple[np.ndarray, float]:
    """Compress ``gradient * gradient_scale`` after momentum and error feedback to levels.

    Parameters
    ----------
    gradient : array of T, shape (n,)
    levels : int
        What `dithering_allows`.
    stream : array of uint64, shape (2,)
        Moved on in place, by n draws.
    natural : bool
        Whether levels are powers of two, or else equidistant.
    l2 : bool
        Whether the norm is the l2 norm, or else the largest magnitude.
    fixed_width : bool
        Leave out Elias coding even where it is smaller.
    gradient_scale : float
    momentum : array of T, shape (n,), optional
        Updated in place: m = mu m + g; g becomes g + mu m.
    mu : float
    residual : array of T, shape (n,), optional
        Updated in place: e becomes p - D(p).
    ratio : float
        p = g + ratio e.
    payload : array of uint8, shape (dithering_capacity(n, levels, T),), optional
        Where to write.

    Returns
    -------
    payload : array of uint8
        The first uint32 says how many bytes are in use; the others have no meaning.
    norm : float
        Not finite where an element is not, or the l2 norm of float64 overflows.

    Raises
    ------
    TypeError, ValueError
        An array has the wrong dtype, or the wrong size or layout; or levels are out of range.
    """
    suffix = suffix_of("gradient", gradient.dtype)
    n, dtype = gradient.size, gradient.dtype
    _check_levels(levels, natural)
    payload = output_of("payload", payload, dithering_capacity(n, levels, dtype), np.uint8)
    norm = getattr(library, "gluon_gc_dithering_compress_" + suffix)(
        address_of("gradient", gradient, n, dtype),
        n,
        gradient_scale,
        levels,
        natural,
        l2,
        fixed_width,
        address_of("momentum", momentum, n, dtype, writes=True),
        mu,
        address_of("residual", residual, n, dtype, writes=True),
        ratio,
        stream_address(stream),
        payload.ctypes.data,
        threads,
        isa_number(isa),
    )
    return payload, norm


def dithering_valid(
    payload: np.ndarray,
    n: int,
    levels: int,
    dtype=np.float32,
    *,
    natural: bool = False,
    isa: Optional[str] = None,
) -> bool:
    """Whether a uint8 ``payload`` is in its bounds, and what it decodes to is in those of n."""
    _check_levels(levels, natural)
    function = getattr(library, "gluon_gc_dithering_valid_" + suffix_of("dtype", dtype))
    address = address_of("payload", payload, payload.size, np.uint8)
    return bool(function(address, payload.size, n, levels, natural, isa_number(isa)))


def _check(payload: np.ndarray, n: int, levels: int, dtype, natural: bool, isa) -> None:
    if not dithering_valid(payload, n, levels, dtype, natural=natural, isa=isa):
        raise ValueError(f"payload must decode to {n} elements of {levels} levels")


def dithering_decompress(
    payload: np.ndarray,
    n: int,
    levels: int,
    dtype=np.float32,
    *,
    natural: bool = False,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Decode a uint8 ``payload`` of n elements of ``dtype`` into ``out`` or a new array."""
    _check(payload, n, levels, dtype, natural, isa)
    function = getattr(library, "gluon_gc_dithering_decompress_" + suffix_of("dtype", dtype))
    out = output_of("out", out, n, dtype)
    function(payload.ctypes.data, n, levels, natural, out.ctypes.data, threads, isa_number(isa))
    return out


def dithering_decompress_add(
    payload: np.ndarray,
    out: np.ndarray,
    levels: int,
    *,
    natural: bool = False,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Add what a uint8 ``payload`` decodes to to ``out``, in place; returns it."""
    _check(payload, out.size, levels, out.dtype, natural, isa)
    function = getattr(library, "gluon_gc_dithering_decompress_add_" + suffix_of("out", out.dtype))
    address = address_of("out", out, out.size, out.dtype, writes=True)
    function(payload.ctypes.data, out.size, levels, natural, address, threads, isa_number(isa))
    return out


def dithering_decompress_sum(
    payloads: np.ndarray,
    n: int,
    levels: int,
    dtype=np.float32,
    *,
    natural: bool = False,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Add up what payloads decode to, the first row first.

    Parameters
    ----------
    payloads : array of uint8, shape (count, stride)
        One payload at the start of each row.
    n, levels : int
        Elements of each, and the levels they have.
    dtype : float32 or float64
    natural : bool
        As they were compressed.
    out : array of ``dtype``, shape (n,), optional
        Where to write.
    """
    function = getattr(library, "gluon_gc_dithering_decompress_sum_" + suffix_of("dtype", dtype))
    count, stride = payloads.shape
    address = address_of("payloads", payloads, count * stride, np.uint8)
    for payload in payloads:
        _check(payload, n, levels, dtype, natural, isa)
    out = output_of("out", out, n, dtype)
    function(
        address,
        stride,
        count,
        n,
        levels,
        natural,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out
