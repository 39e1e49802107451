"""dgc: its numbers, compress, the check of a payload, decompress, add, and sum."""

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


class DgcConfig(ctypes.Structure):
    """What decides which elements are sent, and how; the fields are those of operators/core/dgc.h.

    Parameters
    ----------
    selects : int
        Elements that are sent at most.
    samples : int
        Elements of the sample; n: all of them.
    top : int
        How many of the sample reach the first threshold.
    stride : int
        Of a strided sample.
    iterations : int
        How often the threshold is adapted at most.
    upper, lower : float
        The bounds of the number that reaches a threshold, as shares of selects, and the factors of
        the threshold.
    max_norm : float
        Of the gradient, l2; 0: any.
    strided : bool
        Whether the sample is every stride-th element, or else drawn.
    resample : bool
        Whether just the largest are sent if too many reach the threshold.
    nesterov, momentum_masking, half_values : bool
    """

    _fields_ = [
        ("selects", size),
        ("samples", size),
        ("top", size),
        ("stride", size),
        ("iterations", size),
        ("upper", ctypes.c_double),
        ("lower", ctypes.c_double),
        ("max_norm", ctypes.c_double),
        ("strided", ctypes.c_bool),
        ("resample", ctypes.c_bool),
        ("nesterov", ctypes.c_bool),
        ("momentum_masking", ctypes.c_bool),
        ("half_values", ctypes.c_bool),
    ]


declare("dgc_allows", integer, pointer, size)
for _suffix, _value in FLOATS.values():
    declare(f"dgc_capacity_{_suffix}", size, size, integer)
    declare(
        f"dgc_compress_{_suffix}",
        ctypes.c_double,
        *(pointer, size, _value, pointer),
        *(pointer, _value, pointer, pointer, pointer, integer, integer),
    )
    _output = (pointer, integer, integer)
    declare(f"dgc_valid_{_suffix}", integer, pointer, size, size, integer, integer)
    declare(f"dgc_decompress_{_suffix}", None, pointer, size, integer, *_output)
    declare(f"dgc_decompress_add_{_suffix}", None, pointer, integer, pointer, integer)
    declare(f"dgc_decompress_sum_{_suffix}", None, pointer, size, size, size, integer, *_output)


def dgc_capacity(most: int, dtype=np.float32, *, half_values: bool = False) -> int:
    """The bytes of a payload of ``most`` elements of ``dtype``."""
    function = getattr(library, "gluon_gc_dgc_capacity_" + suffix_of("dtype", dtype))
    return function(most, half_values)


def dgc_compress(
    gradient: np.ndarray,
    velocity: np.ndarray,
    config: DgcConfig,
    stream: np.ndarray,
    *,
    gradient_scale: float = 1.0,
    momentum: Optional[np.ndarray] = None,
    mu: float = 0.0,
    payload: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> tuple[np.ndarray, float]:
    """Accumulate ``gradient * gradient_scale`` and take out what is large.

    Parameters
    ----------
    gradient : array of T, shape (n,)
    velocity : array of T, shape (n,)
        Updated in place; 0 where it was sent.
    config : DgcConfig
    stream : array of uint64, shape (2,)
        Moved on in place: by one draw if the sample is strided, by none if it is everything, else
        by config.samples.
    gradient_scale : float
    momentum : array of T, shape (n,), optional
        Updated in place.
    mu : float
    payload : array of uint8, shape (dgc_capacity(config.selects, T, ...),), optional
        Where to write.

    Returns
    -------
    payload : array of uint8
        The first uint32 says how many bytes are in use; the others have no meaning.
    check : float
        0, or NaN where an element of the velocity is not finite.

    Raises
    ------
    TypeError, ValueError
        An array has the wrong dtype, or the wrong size or layout; or the config does not fit.
    """
    suffix = suffix_of("gradient", gradient.dtype)
    n, dtype = gradient.size, gradient.dtype
    if not library.gluon_gc_dgc_allows(ctypes.byref(config), n):
        raise ValueError(
            f"config must have 1 <= selects <= {n} and 1 <= top <= samples <= {n}, got "
            f"{config.selects}, {config.top} of {config.samples}, stride {config.stride}"
        )
    most = dgc_capacity(config.selects, dtype, half_values=config.half_values)
    payload = output_of("payload", payload, most, np.uint8)
    check = getattr(library, "gluon_gc_dgc_compress_" + suffix)(
        address_of("gradient", gradient, n, dtype),
        n,
        gradient_scale,
        ctypes.byref(config),
        address_of("momentum", momentum, n, dtype, writes=True),
        mu,
        address_of("velocity", velocity, n, dtype, writes=True),
        stream_address(stream),
        payload.ctypes.data,
        threads,
        isa_number(isa),
    )
    return payload, check


def dgc_valid(
    payload: np.ndarray,
    n: int,
    dtype=np.float32,
    *,
    half_values: bool = False,
    isa: Optional[str] = None,
) -> bool:
    """Whether a uint8 ``payload`` is in its bounds, and its indices ascend below n."""
    function = getattr(library, "gluon_gc_dgc_valid_" + suffix_of("dtype", dtype))
    address = address_of("payload", payload, payload.size, np.uint8)
    return bool(function(address, payload.size, n, half_values, isa_number(isa)))


def _check(payload: np.ndarray, n: int, dtype, half_values: bool, isa: Optional[str]) -> None:
    if not dgc_valid(payload, n, dtype, half_values=half_values, isa=isa):
        raise ValueError(f"payload must have a length and indices that ascend below {n}")


def dgc_decompress(
    payload: np.ndarray,
    n: int,
    dtype=np.float32,
    *,
    half_values: bool = False,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Decode a uint8 ``payload`` of n elements of ``dtype`` into ``out`` or a new array."""
    _check(payload, n, dtype, half_values, isa)
    function = getattr(library, "gluon_gc_dgc_decompress_" + suffix_of("dtype", dtype))
    out = output_of("out", out, n, dtype)
    function(payload.ctypes.data, n, half_values, out.ctypes.data, threads, isa_number(isa))
    return out


def dgc_decompress_add(
    payload: np.ndarray,
    out: np.ndarray,
    *,
    half_values: bool = False,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Add what a uint8 ``payload`` decodes to to ``out``, in place; returns it."""
    _check(payload, out.size, out.dtype, half_values, isa)
    function = getattr(library, "gluon_gc_dgc_decompress_add_" + suffix_of("out", out.dtype))
    address = address_of("out", out, out.size, out.dtype, writes=True)
    function(payload.ctypes.data, half_values, address, isa_number(isa))
    return out


def dgc_decompress_sum(
    payloads: np.ndarray,
    n: int,
    dtype=np.float32,
    *,
    half_values: bool = False,
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
    half_values : bool
        Whether the values are float16.
    out : array of ``dtype``, shape (n,), optional
        Where to write.
    """
    function = getattr(library, "gluon_gc_dgc_decompress_sum_" + suffix_of("dtype", dtype))
    count, stride = payloads.shape
    address = address_of("payloads", payloads, count * stride, np.uint8)
    for payload in payloads:
        _check(payload, n, dtype, half_values, isa)
    out = output_of("out", out, n, dtype)
    to = out.ctypes.data
    function(address, stride, count, n, half_values, to, threads, isa_number(isa))
    return out
