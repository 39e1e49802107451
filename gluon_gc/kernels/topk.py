"""topk: compress, the check of a payload, decompress, add, and sum."""

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
    declare(f"topk_payload_bytes_{_suffix}", size, size)
    declare(
        f"topk_compress_{_suffix}",
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
        integer,
        integer,
    )
    declare(f"topk_valid_{_suffix}", integer, pointer, size, size, integer)
    declare(f"topk_decompress_{_suffix}", None, pointer, size, size, pointer, integer, integer)
    declare(f"topk_decompress_add_{_suffix}", None, pointer, size, pointer, integer)
    declare(
        f"topk_decompress_sum_{_suffix}",
        None,
        pointer,
        size,
        size,
        size,
        size,
        pointer,
        integer,
        integer,
    )


def topk_payload_bytes(k: int, dtype=np.float32) -> int:
    """The size of a topk payload of k elements of ``dtype``."""
    return getattr(library, "gluon_gc_topk_payload_bytes_" + suffix_of("dtype", dtype))(k)


def topk_compress(
    gradient: np.ndarray,
    k: int,
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
    """Compress ``gradient * gradient_scale`` after momentum and error feedback to k elements.

    Parameters
    ----------
    gradient : array of T, shape (n,)
    k : int
        min(1, n) <= k <= n
    gradient_scale : float
    momentum : array of T, shape (n,), optional
        Updated in place: m = mu m + g; g becomes g + mu m.
    mu : float
    residual : array of T, shape (n,), optional
        Updated in place: e becomes p without the elements that were sent.
    ratio : float
        p = g + ratio e.
    payload : array of uint8, shape (topk_payload_bytes(k, T),), optional
        Where to write.

    Returns
    -------
    payload : array of uint8
    largest : float
        The largest abs(p); not finite where an element is not.

    Raises
    ------
    TypeError, ValueError
        An array has the wrong dtype, or the wrong size or layout; or k is out of range.
    """
    suffix = suffix_of("gradient", gradient.dtype)
    n, dtype = gradient.size, gradient.dtype
    if not min(1, n) <= k <= n:
        raise ValueError(f"k must be from {min(1, n)} to {n}, got {k}")
    payload = output_of("payload", payload, topk_payload_bytes(k, dtype), np.uint8)
    largest = getattr(library, "gluon_gc_topk_compress_" + suffix)(
        address_of("gradient", gradient, n, dtype),
        n,
        k,
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


def topk_valid(
    payload: np.ndarray, n: int, k: int, dtype=np.float32, *, isa: Optional[str] = None
) -> bool:
    """Whether the k indices of a uint8 ``payload`` ascend and are below n."""
    function = getattr(library, "gluon_gc_topk_valid_" + suffix_of("dtype", dtype))
    address = address_of("payload", payload, topk_payload_bytes(k, dtype), np.uint8)
    return bool(function(address, n, k, isa_number(isa)))


def _check_topk(payload: np.ndarray, n: int, k: int, dtype, isa: Optional[str]) -> None:
    if not topk_valid(payload, n, k, dtype, isa=isa):
        raise ValueError(f"payload must have indices that ascend below {n}")


def topk_decompress(
    payload: np.ndarray,
    n: int,
    k: int,
    dtype=np.float32,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """Decode a uint8 ``payload`` of k of n elements of ``dtype`` into ``out`` or a new array."""
    _check_topk(payload, n, k, dtype, isa)
    function = getattr(library, "gluon_gc_topk_decompress_" + suffix_of("dtype", dtype))
    out = output_of("out", out, n, dtype)
    function(payload.ctypes.data, n, k, out.ctypes.data, threads, isa_number(isa))
    return out


def topk_decompress_add(
    payload: np.ndarray, out: np.ndarray, k: int, *, isa: Optional[str] = None
) -> np.ndarray:
    """Add what a uint8 ``payload`` of k elements decodes to to ``out``, in place; returns it."""
    _check_topk(payload, out.size, k, out.dtype, isa)
    function = getattr(library, "gluon_gc_topk_decompress_add_" + suffix_of("out", out.dtype))
    address = address_of("out", out, out.size, out.dtype, writes=True)
    function(payload.ctypes.data, k, address, isa_number(isa))
    return out


def topk_decompress_sum(
    payloads: np.ndarray,
    n: int,
    k: int,
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
    n, k : int
        Elements of each, and how many of them are in the payload.
    dtype : float32 or float64
    out : array of ``dtype``, shape (n,), optional
        Where to write.
    """
    function = getattr(library, "gluon_gc_topk_decompress_sum_" + suffix_of("dtype", dtype))
    count, stride = payloads.shape
    least = topk_payload_bytes(k, dtype)
    if stride < least:
        raise ValueError(f"payloads must have rows of at least {least} bytes, got {stride}")
    address = address_of("payloads", payloads, count * stride, np.uint8)
    for payload in payloads:
        _check_topk(payload[:least], n, k, dtype, isa)
    out = output_of("out", out, n, dtype)
    function(address, stride, count, n, k, out.ctypes.data, threads, isa_number(isa))
    return out
