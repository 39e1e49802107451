"""Finds and loads the compiled library, and gives each of its MXNet operators a typed function.

Every call is queued on MXNet's engine and returns at once; an error in an operator surfaces where
its output is next waited for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Optional, Sequence

import mxnet as mx
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

_LIBRARY = Path(__file__).with_name("libgluon_gc.so")


def _load() -> None:
    if not _LIBRARY.exists():
        raise ImportError(f"{_LIBRARY} does not exist: build the package with `pip install .`")
    mx.library.load(str(_LIBRARY), verbose=False)


_load()


def _operator(name: str):
    return getattr(mx.nd.op, "gluon_gc_" + name)


def compress(
    compressor: str,
    x: NDArray,
    state: Sequence[NDArray],
    attributes: Mapping[str, object],
    scale: float = 1.0,
    ratio: float = 1.0,
) -> NDArray:
    """Compress one chunk, with momentum and error feedback in the same sweep.

    Parameters
    ----------
    compressor : str
        The compressor's name.
    x : NDArray
        Gradient, float32 or float64, any shape, n elements in all.
    state : sequence of NDArray
        The momentum (if ``attributes`` has "mu"), then the compressor's memory (if it has "ef").
        Updated in place.
    attributes : mapping
        The compressor's options, and "mu", "ef", "dtype".
    scale : float
        Multiplies the gradient first.
    ratio : float
        Multiplies the residual (corrected error feedback).

    Returns
    -------
    NDArray
        Payload, uint8, shape (bytes,).
    """
    return _operator(compressor + "_compress")(
        x, *state, scale=repr(float(scale)), ratio=repr(float(ratio)), **attributes
    )


def aggregate(
    compressor: str,
    payloads: NDArray,
    state: Sequence[NDArray],
    attributes: Mapping[str, object],
    n: int,
    threads: int = 1,
) -> NDArray:
    """Sum decoded payloads in row order and compress the sum, with error feedback.

    Parameters
    ----------
    payloads : NDArray
        uint8, shape (workers, bytes).
    n : int
        Number of elements that a payload decodes to.
    threads : int
        Threads that the operator may use.

    The others, and what is returned, are as in `compress`.
    """
    return _operator(compressor + "_aggregate")(
        payloads, *state, n=n, threads=threads, **attributes
    )


def decompress(
    compressor: str,
    payload: NDArray,
    attributes: Mapping[str, object],
    n: int,
    out: Optional[NDArray] = None,
) -> NDArray:
    """Decode a payload of n elements, into `out` (shape (n,)) if given."""
    return _operator(compressor + "_decompress")(payload, n=n, out=out, **attributes)


def residual(
    compressor: str, memory: Sequence[NDArray], attributes: Mapping[str, object]
) -> NDArray:
    """What error feedback will add to the next gradient, shape (n,)."""
    return _operator(compressor + "_residual")(*memory, **attributes)


def half_from_float(x: NDArray, scale: float = 1.0) -> NDArray:
    """Multiply float32 values by `scale` and round them to float16."""
    return _operator("half_from_float")(x, scale=repr(float(scale)))


def float_from_half(x: NDArray, out: Optional[NDArray] = None) -> NDArray:
    """Float16 values as float32, into `out` if given."""
    return _operator("float_from_half")(x, out=out)


def framed_words(num_bytes: int) -> int:
    """Number of 32-bit words that `num_bytes` bytes take on the wire."""
    return -(-8 * num_bytes // 30)


def frame(payload: NDArray, row: int, rows: int, out: Optional[RowSparseNDArray] = None):
    """Bytes as the one stored row `row` of a row_sparse float32 array of `rows` rows.

    The words look like ordinary floats, which MXNet's server may add 0.0 to without changing them.
    """
    return _operator("frame")(payload, row=row, rows=rows, out=out)


def unframe(framed: RowSparseNDArray, num_bytes: int, count: int = 1) -> NDArray:
    """The bytes of rows 0 to `count` - 1, uint8, shape (count, num_bytes).

    The operator fails if a row is missing or holds anything but framed words.
    """
    return _operator("unframe")(framed, bytes=num_bytes, count=count)
