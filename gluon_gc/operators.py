"""Finds and loads the compiled library, and gives each of its MXNet operators a typed function.

Every call is queued on MXNet's engine and returns at once; an error in an operator surfaces where
its output is next waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

LIBRARY = Path(__file__).with_name("libgluon_gc.so")

mx.library.load(str(LIBRARY), verbose=False)


def _operator(name: str):
    return getattr(mx.nd.op, "gluon_gc_" + name)


METER = ("calls", "sent_bytes", "received_bytes")
METER += ("compress_seconds", "compressed_at", "wait_seconds", "decompress_seconds", "nonfinite")
"""What the elements of a meter are: operators/mxnet/meter.h."""


def compress(
    compressor: str,
    x: NDArray,
    meter: NDArray,
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
    meter : NDArray
        float64, shape (len(METER),); updated in place.
    state : sequence of NDArray
        The stream (int64, shape (2, 2); if the compressor draws), the momentum (if ``attributes``
        has "mu"), then the compressor's memory (if it has "ef"). Updated in place.
    attributes : mapping
        The compressor's options, and "mu", "ef", "dtype".
    scale : float
        Multiplies the gradient first.
    ratio : float
        Multiplies the residual (corrected error feedback).

    Returns
    -------
    NDArray
        Payload: uint8, shape (bytes,), or if payloads are summed as they are, values of x's dtype.
    """
    return _operator(compressor + "_compress")(
        x, meter, *state, scale=repr(float(scale)), ratio=repr(float(ratio)), **attributes
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
    meter: NDArray,
    stream: Sequence[NDArray],
    attributes: Mapping[str, object],
    n: int,
    out: Optional[NDArray] = None,
    refused: str = "",
) -> NDArray:
    """Decode a payload of n elements, into `out` (shape (n,)) if given.

    Several payloads, shape (payloads, bytes), are summed in row order.

    `stream` holds the stream as compress left it, for a compressor that draws; the others are as
    in `compress`. If `refused` is given, the operator fails where the payload is of values that
    are not finite, and calls them so.
    """
    if refused:
        attributes = dict(attributes, refused=refused)
    return _operator(compressor + "_decompress")(
        payload, meter, *stream, n=n, out=out, **attributes
    )


def residual(
    compressor: str, memory: Sequence[NDArray], attributes: Mapping[str, object]
) -> NDArray:
    """What error feedback will add to the next gradient, shape (n,)."""
    return _operator(compressor + "_residual")(*memory, **attributes)


def check_finite(
    values: NDArray, meter: NDArray, slices: Sequence[Tuple[int, int]], refused: Sequence[str]
) -> NDArray:
    """Look for NaNs and infinities in slices of an array, which whoever reads it then waits for.

    Parameters
    ----------
    values : NDArray
        float16, float32 or float64.
    meter : NDArray
        As in `compress`; counts calls, and those that found some.
    slices : sequence of (int, int)
        Begins and ends.
    refused : sequence of str
        For each slice what to call it in an error, on which the operator fails, or "": none.

    Returns
    -------
    NDArray
        uint8, shape (1,): 1 if there are none.
    """
    called = {f"refused{i}": name for i, name in enumerate(refused) if name}
    text = " ".join(f"{begin} {end}" for begin, end in slices)
    return _operator("check_finite")(values, meter, slices=text, **called)


def half_from_float(x: NDArray, scale: float = 1.0) -> NDArray:
    """Multiply float32 values by `scale` and round them to float16."""
    return _operator("half_from_float")(x, scale=repr(float(scale)))


def float_from_half(x: NDArray, out: Optional[NDArray] = None) -> NDArray:
    """Float16 values as float32, into `out` if given."""
    return _operator("float_from_half")(x, out=out)


def as_bytes(x: NDArray) -> NDArray:
    """The bytes of float32 or float64 values, uint8, shape (bytes,)."""
    return _operator("as_bytes")(x, dtype=np.dtype(x.dtype).name)


def sum_rows(rows: NDArray, dtype: str) -> NDArray:
    """The sum of values whose bytes are rows, uint8, shape (rows, bytes), in the rows' order."""
    return _operator("sum_rows")(rows, dtype=dtype)


def framed_words(num_bytes: int) -> int:
    """Number of 32-bit words that `num_bytes` bytes take on the wire."""
    return -(-8 * num_bytes // 30)


@dataclass(frozen=True)
class MessageRows:
    """How a message of several parts lies in the rows of a row_sparse float32 array.

    Parameters
    ----------
    parts : tuple of (int, int or None)
        For each part its length in bytes, or the most that it can be, and then where it says how
        many bytes there are from there on. A message with such a part takes only the rows that it
        needs.
    """

    parts: Tuple[Tuple[int, Optional[int]], ...]

    _ROW_WORDS = 256  # each row costs 12 bytes more on the wire, and the last is seldom full
    _LENGTH_BYTES = 4

    @property
    def varies(self) -> bool:
        """Whether its length may vary."""
        return any(length_at is not None for _, length_at in self.parts)

    @property
    def _words(self) -> int:
        num_bytes = sum(most for most, _ in self.parts)
        return framed_words(num_bytes + (self._LENGTH_BYTES if self.varies else 0))

    @property
    def row_words(self) -> int:
        return min(self._words, self._ROW_WORDS) if self.varies else self._words

    @property
    def count(self) -> int:
        """The most rows that a message takes."""
        return -(-self._words // self.row_words)

    def _attributes(self) -> Dict[str, object]:
        parts = ";".join(f"{most}" if at is None else f"{most}@{at}" for most, at in self.parts)
        return dict(parts=parts, row_words=self.row_words, message_rows=self.count)


class Counter(NamedTuple):
    """One element of a float64 array, which operators add to."""

    array: NDArray
    index: int


def _counted(counter: Optional[Counter]) -> Tuple[List[NDArray], Dict[str, object]]:
    """The inputs and the attributes of an operator that may count."""
    if counter is None:
        return [], dict(counted=False)
    return [counter.array], dict(counted=True, count_at=counter.index)


def frame(
    parts: Sequence[NDArray],
    rows: MessageRows,
    place: int,
    places: int,
    counter: Optional[Counter] = None,
    out: Optional[RowSparseNDArray] = None,
) -> RowSparseNDArray:
    """A message of these parts (uint8) in the rows from ``place * rows.count`` on, of `places`.

    The words look like ordinary floats, which MXNet's server may add 0.0 to without changing them.
    `counter` is told the bytes that this takes on the wire.
    """
    counts, counting = _counted(counter)
    return _operator("frame")(
        *parts,
        *counts,
        row=place * rows.count,
        rows=places * rows.count,
        out=out,
        **counting,
        **rows._attributes(),
    )


def rows_left(first_rows: RowSparseNDArray, rows: MessageRows, places: int = 1) -> NDArray:
    """Numbers of the rows that messages have beside their first ones, int64; they may repeat."""
    return _operator("rows_left")(first_rows, count=places, **rows._attributes()).reshape((-1,))


def keep_rows(rows: RowSparseNDArray, kept: RowSparseNDArray) -> NDArray:
    """Copy rows to where they are in `kept`, which has all; returns how many, shape (1,)."""
    return _operator("keep_rows")(rows, kept)


def unframe(
    framed: Sequence[RowSparseNDArray],
    rows: MessageRows,
    places: int = 1,
    counter: Optional[Counter] = None,
) -> List[NDArray]:
    """Each part of the messages of the first `places`, uint8, shape (places, its most bytes).

    Their rows may be spread over several arrays. What a part does not fill is undefined. The
    operator fails if a row is missing or holds anything but framed words. `counter` is as in
    `frame`.
    """
    counts, counting = _counted(counter)
    parts = _operator("unframe")(
        *framed, *counts, arrays=len(framed), count=places, **counting, **rows._attributes()
    )
    return parts if isinstance(parts, list) else [parts]
