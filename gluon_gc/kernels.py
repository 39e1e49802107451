"""The compiled kernels on NumPy arrays, for tests and benchmarks; needs no MXNet.

Every function takes ``isa``, one of `isas()`, the best by default, and most take ``threads``.
Neither changes a bit of what comes out. Arrays must be C-contiguous and of the stated dtype;
nothing is converted. T is float32 or float64.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Optional

import numpy as np

from . import env

_FLOATS = {
    np.dtype(np.float32): ("f32", ctypes.c_float),
    np.dtype(np.float64): ("f64", ctypes.c_double),
}
_ISAS = ("scalar", "avx2", "avx512")


def _load() -> ctypes.CDLL:
    path = env.get("GLUON_GC_LIBRARY") or Path(__file__).with_name("libgluon_gc.so")
    lib = ctypes.CDLL(str(path))
    pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

    def declare(name, result, *arguments):
        function = getattr(lib, "gluon_gc_" + name)
        function.restype, function.argtypes = result, arguments

    declare("best_isa", integer)
    for suffix, value in _FLOATS.values():
        declare(f"onebit_payload_bytes_{suffix}", size, size)
        declare(
            f"onebit_compress_{suffix}",
            ctypes.c_double,
            pointer,
            size,
            value,
            integer,
            pointer,
            value,
            pointer,
            pointer,
            value,
            pointer,
            integer,
            integer,
        )
        declare(f"onebit_decompress_{suffix}", None, pointer, size, pointer, integer, integer)
        declare(f"onebit_decompress_add_{suffix}", None, pointer, size, pointer, integer, integer)
        declare(
            f"onebit_decompress_sum_{suffix}",
            None,
            pointer,
            size,
            size,
            size,
            pointer,
            integer,
            integer,
        )
        declare(f"onebit_residual_{suffix}", None, pointer, value, size, pointer, integer)
        declare(f"topk_payload_bytes_{suffix}", size, size)
        declare(
            f"topk_compress_{suffix}",
            value,
            pointer,
            size,
            size,
            value,
            pointer,
            value,
            pointer,
            value,
            pointer,
            integer,
            integer,
        )
        declare(f"topk_valid_{suffix}", integer, pointer, size, size, integer)
        declare(f"topk_decompress_{suffix}", None, pointer, size, size, pointer, integer, integer)
        declare(f"topk_decompress_add_{suffix}", None, pointer, size, pointer, integer)
        declare(
            f"topk_decompress_sum_{suffix}",
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
    declare("half_from_float", None, pointer, size, ctypes.c_float, pointer, integer, integer)
    declare("float_from_half", None, pointer, size, pointer, integer, integer)
    declare("frame_words", size, size)
    declare("frame", None, pointer, size, pointer, integer, integer)
    declare("unframe", None, pointer, size, pointer, integer, integer)
    declare("framed", integer, pointer, size, integer)
    declare("limit_sum", ctypes.c_float, pointer, size, integer, integer)
    for name in ("fill", "add_constant"):
        declare("limit_" + name, None, pointer, size, integer, integer)
    for name in ("copy", "add", "narrow", "widen"):
        declare("limit_" + name, None, pointer, pointer, size, integer, integer)
    declare("limit_add_twice", None, pointer, pointer, pointer, size, integer, integer)
    return lib


library = _load()
"""The C interface of operators/core/capi.cpp."""


def isas() -> tuple[str, ...]:
    """The instruction sets that this machine runs, the slowest first."""
    return _ISAS[: library.gluon_gc_best_isa() + 1]


def onebit_payload_bytes(n: int, dtype=np.float32) -> int:
    """The size of a onebit payload of n elements of ``dtype``."""
    return getattr(library, "gluon_gc_onebit_payload_bytes_" + _suffix("dtype", dtype))(n)


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
    suffix = _suffix("gradient", gradient.dtype)
    n, dtype = gradient.size, gradient.dtype
    if (corrected is None) != (scale is None):
        raise ValueError("corrected and scale must be given together")
    payload = _output("payload", payload, onebit_payload_bytes(n, dtype), np.uint8)
    magnitude = getattr(library, "gluon_gc_onebit_compress_" + suffix)(
        _address("gradient", gradient, n, dtype),
        n,
        gradient_scale,
        scaling,
        _address("momentum", momentum, n, dtype, writes=True),
        mu,
        _address("corrected", corrected, n, dtype, writes=True),
        _address("scale", scale, 1, dtype, writes=True),
        ratio,
        payload.ctypes.data,
        threads,
        _isa(isa),
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
    function = getattr(library, "gluon_gc_onebit_decompress_" + _suffix("dtype", dtype))
    out = _output("out", out, n, dtype)
    function(
        _address("payload", payload, onebit_payload_bytes(n, dtype), np.uint8),
        n,
        out.ctypes.data,
        threads,
        _isa(isa),
    )
    return out


def onebit_decompress_add(
    payload: np.ndarray, out: np.ndarray, *, threads: int = 1, isa: Optional[str] = None
) -> np.ndarray:
    """Add what a uint8 ``payload`` decodes to to ``out``, an array of T, in place; returns it."""
    function = getattr(library, "gluon_gc_onebit_decompress_add_" + _suffix("out", out.dtype))
    function(
        _address("payload", payload, onebit_payload_bytes(out.size, out.dtype), np.uint8),
        out.size,
        _address("out", out, out.size, out.dtype, writes=True),
        threads,
        _isa(isa),
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
    function = getattr(library, "gluon_gc_onebit_decompress_sum_" + _suffix("dtype", dtype))
    count, stride = payloads.shape
    least = onebit_payload_bytes(n, dtype)
    if stride < least or stride % 4:
        raise ValueError(
            f"payloads must have rows of at least {least} bytes, a multiple of 4, got {stride}"
        )
    out = _output("out", out, n, dtype)
    function(
        _address("payloads", payloads, count * stride, np.uint8),
        stride,
        count,
        n,
        out.ctypes.data,
        threads,
        _isa(isa),
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
    function = getattr(library, "gluon_gc_onebit_residual_" + _suffix("corrected", dtype))
    _address("scale", scale, 1, dtype)
    out = _output("out", out, n, dtype)
    function(_address("corrected", corrected, n, dtype), scale[0], n, out.ctypes.data, _isa(isa))
    return out


def topk_payload_bytes(k: int, dtype=np.float32) -> int:
    """The size of a topk payload of k elements of ``dtype``."""
    return getattr(library, "gluon_gc_topk_payload_bytes_" + _suffix("dtype", dtype))(k)


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
    suffix = _suffix("gradient", gradient.dtype)
    n, dtype = gradient.size, gradient.dtype
    if not min(1, n) <= k <= n:
        raise ValueError(f"k must be from {min(1, n)} to {n}, got {k}")
    payload = _output("payload", payload, topk_payload_bytes(k, dtype), np.uint8)
    largest = getattr(library, "gluon_gc_topk_compress_" + suffix)(
        _address("gradient", gradient, n, dtype),
        n,
        k,
        gradient_scale,
        _address("momentum", momentum, n, dtype, writes=True),
        mu,
        _address("residual", residual, n, dtype, writes=True),
        ratio,
        payload.ctypes.data,
        threads,
        _isa(isa),
    )
    return payload, largest


def topk_valid(
    payload: np.ndarray, n: int, k: int, dtype=np.float32, *, isa: Optional[str] = None
) -> bool:
    """Whether the k indices of a uint8 ``payload`` ascend and are below n."""
    function = getattr(library, "gluon_gc_topk_valid_" + _suffix("dtype", dtype))
    address = _address("payload", payload, topk_payload_bytes(k, dtype), np.uint8)
    return bool(function(address, n, k, _isa(isa)))


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
    function = getattr(library, "gluon_gc_topk_decompress_" + _suffix("dtype", dtype))
    out = _output("out", out, n, dtype)
    function(payload.ctypes.data, n, k, out.ctypes.data, threads, _isa(isa))
    return out


def topk_decompress_add(
    payload: np.ndarray, out: np.ndarray, k: int, *, isa: Optional[str] = None
) -> np.ndarray:
    """Add what a uint8 ``payload`` of k elements decodes to to ``out``, in place; returns it."""
    _check_topk(payload, out.size, k, out.dtype, isa)
    function = getattr(library, "gluon_gc_topk_decompress_add_" + _suffix("out", out.dtype))
    address = _address("out", out, out.size, out.dtype, writes=True)
    function(payload.ctypes.data, k, address, _isa(isa))
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
    function = getattr(library, "gluon_gc_topk_decompress_sum_" + _suffix("dtype", dtype))
    count, stride = payloads.shape
    least = topk_payload_bytes(k, dtype)
    if stride < least:
        raise ValueError(f"payloads must have rows of at least {least} bytes, got {stride}")
    address = _address("payloads", payloads, count * stride, np.uint8)
    for payload in payloads:
        _check_topk(payload[:least], n, k, dtype, isa)
    out = _output("out", out, n, dtype)
    function(address, stride, count, n, k, out.ctypes.data, threads, _isa(isa))
    return out


def half_from_float(
    x: np.ndarray,
    scale: float = 1.0,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """``x * scale`` of a float32 array, rounded to float16, to nearest even."""
    out = _output("out", out, x.size, np.float16)
    library.gluon_gc_half_from_float(
        _address("x", x, x.size, np.float32), x.size, scale, out.ctypes.data, threads, _isa(isa)
    )
    return out


def float_from_half(
    x: np.ndarray, *, out: Optional[np.ndarray] = None, threads: int = 1, isa: Optional[str] = None
) -> np.ndarray:
    """A float16 array as float32."""
    out = _output("out", out, x.size, np.float32)
    library.gluon_gc_float_from_half(
        _address("x", x, x.size, np.float16), x.size, out.ctypes.data, threads, _isa(isa)
    )
    return out


def frame_words(nbytes: int) -> int:
    """The number of framed words that carry ``nbytes`` of payload."""
    return library.gluon_gc_frame_words(nbytes)


def frame(
    payload: np.ndarray,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """The uint8 ``payload`` as uint32 words that are ordinary floats and survive a sum with 0.0."""
    out = _output("out", out, frame_words(payload.size), np.uint32)
    library.gluon_gc_frame(
        _address("payload", payload, payload.size, np.uint8),
        payload.size,
        out.ctypes.data,
        threads,
        _isa(isa),
    )
    return out


def unframe(
    words: np.ndarray,
    nbytes: int,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """The ``nbytes`` of uint8 payload that `frame` made uint32 ``words`` of."""
    out = _output("out", out, nbytes, np.uint8)
    library.gluon_gc_unframe(
        _address("words", words, frame_words(nbytes), np.uint32),
        nbytes,
        out.ctypes.data,
        threads,
        _isa(isa),
    )
    return out


def framed(words: np.ndarray, *, isa: Optional[str] = None) -> bool:
    """Whether all uint32 ``words`` are of the form that `frame` writes."""
    address = _address("words", words, words.size, np.uint32)
    return bool(library.gluon_gc_framed(address, words.size, _isa(isa)))


def _isa(name: Optional[str]) -> int:
    available = isas()
    if name is None:
        return len(available) - 1
    if name not in available:
        raise ValueError(f"isa must be one of {available} on this machine, got {name!r}")
    return available.index(name)


def _suffix(name: str, dtype) -> str:
    if np.dtype(dtype) not in _FLOATS:
        raise TypeError(f"{name} must be float32 or float64, got {np.dtype(dtype)}")
    return _FLOATS[np.dtype(dtype)][0]


def _address(
    name: str, array: Optional[np.ndarray], size: int, dtype, writes: bool = False
) -> Optional[int]:
    if array is None:
        return None
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype)}, got {array.dtype}")
    if array.size != size:
        raise ValueError(f"{name} must have {size} elements, got {array.size}")
    if not array.flags.c_contiguous or (writes and not array.flags.writeable):
        raise ValueError(f"{name} must be C-contiguous{' and writeable' if writes else ''}")
    return array.ctypes.data


def _output(name: str, array: Optional[np.ndarray], size: int, dtype) -> np.ndarray:
    if array is None:
        return np.empty(size, dtype)
    _address(name, array, size, dtype, writes=True)
    return array
