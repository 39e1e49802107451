"""Loads the compiled library into MXNet, and wraps its operators in typed functions.

Every call is queued on MXNet's engine and returns at once. An error in an operator is raised where
its output is next waited for.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray._internal import _imperative_invoke
from mxnet.ndarray.sparse import RowSparseNDArray

from ... import kernels

if not hasattr(kernels.library, "_opRegSize"):
    raise ImportError(
        f"{kernels.PATH} was built where there was no MXNet: install gluon_gc again, with MXNet"
    )

# mx.library.load would regenerate the Python functions of all MXNet operators, which takes longer
# than importing MXNet.
check_call(_LIB.MXLoadLib(str(kernels.PATH).encode(), 0))

METER = ("calls", "sent_bytes", "received_bytes")
METER += ("compress_seconds", "compressed_at", "wait_seconds", "decompress_seconds", "nonfinite")
"""The names of a meter's first elements; operators/mxnet/meter.h defines them."""
KEPT_SPANS = 64
"""Behind them, a meter has the number, begin and end of this many latest steps."""

_CACHED = 64  # texts that a `MessageAttribute` caches

Places = Tuple[Tuple[int, int], ...]
"""For each chunk or slice of a message: the index of its gradient, and its offset there."""


def call(
    name: str, inputs: Sequence[NDArray], out: Optional[NDArray] = None, **attributes: Any
) -> Any:
    """Queue the operator gluon_gc_NAME; the C++ file that defines it documents its arguments."""
    names, values = list(attributes), list(attributes.values())
    return _imperative_invoke(_handle(name), inputs, names, values, out, False, False)


@lru_cache(maxsize=None)
def _handle(name: str) -> int:
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(f"gluon_gc_{name}".encode(), ctypes.byref(handle)))
    return handle.value


class MessageAttribute:
    """The attribute "message" of operators: all fields of a message as lines of text.

    One long attribute costs less time than many short ones. The text that stays the same from call
    to call is cached.

    Parameters
    ----------
    **shared
        The fields that all operators get.
    """

    def __init__(self, **shared: Any) -> None:
        self._shared = shared
        self._cache: Dict[Any, str] = {}

    def __call__(
        self,
        operator: str,
        layout: Mapping[str, Any],
        gradients: int = 0,
        places: Places = (),
        **values: Any,
    ) -> Dict[str, str]:
        """The attribute for one call of an operator.

        Parameters
        ----------
        operator : str
        layout : mapping
            Fields that rarely change between calls of this operator.
        gradients : int
            The number of gradient arrays.
        places : Places
            The places of the chunks in these arrays.
        **values
            Fields that change from call to call.
        """
        key = operator, gradients, places, *layout.values()
        if key not in self._cache:
            if len(self._cache) == _CACHED:
                self._cache.clear()
            fields = {"gradients": gradients, **layout, **self._shared}
            if places:
                fields["tensors"], fields["begins"] = map(listed, zip(*places))
            self._cache[key] = _lines(fields)
        return {"message": _lines(values) + self._cache[key]}


def _lines(fields: Mapping[str, Any]) -> str:
    return "".join([f"{name}={value}\n" for name, value in fields.items()])


def refusing(names: Sequence[str]) -> Dict[str, str]:
    """The attribute with the tensors' names in errors about NaNs and infinities; "": no error."""
    return {"refused": "\n".join(names)} if any(names) else {}


def clip_factor(gradients: Sequence[NDArray], scale: float, max_norm: float) -> NDArray:
    """The factor that scales the l2 norm of all scale * gradients down to `max_norm`, at most 1.

    float64, shape (1,). It is 1 if the norm is not finite.
    """
    attributes = dict(gradients=len(gradients), scale=repr(scale), max_norm=repr(max_norm))
    return call("clip", gradients, **attributes)


def new_meter() -> NDArray:
    """A meter that starts at zero."""
    return mx.nd.array(np.zeros(len(METER) + 3 * KEPT_SPANS), mx.cpu(), "float64")


def read_meter(meter: NDArray) -> Dict[str, float]:
    """A meter's fields, by the names in METER; waits for all operators that update it."""
    return dict(zip(METER, meter.asnumpy()[: len(METER)].tolist()))


def read_spans(meter: NDArray) -> List[Tuple[float, float, float]]:
    """The number, begin and end of each of the latest steps, in order, in seconds."""
    spans = meter.asnumpy()[len(METER) :].reshape(KEPT_SPANS, 3)
    return sorted(map(tuple, spans[spans[:, 0] > 0].tolist()))


def now_in(meter: NDArray) -> np.ndarray:
    """The memory of a meter, for `messages_in`; valid only while the meter lives."""
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(meter.handle, ctypes.byref(address)))
    return np.ctypeslib.as_array((ctypes.c_double * meter.size).from_address(address.value))


def messages_in(memory: np.ndarray) -> Tuple[int, bool]:
    """How many messages were made, and whether the answer to the last one is not delivered yet.

    It reads the meter as it is now, and does not wait for operators that update it.
    """
    calls = int(memory[0])
    _, begin, end = memory[len(METER) + 3 * (calls % KEPT_SPANS) :][:3]
    return calls, calls > 0 and bool(begin == end)


def listed(numbers: Iterable[int]) -> str:
    """Whole numbers as an attribute's text."""
    return "".join(f"{number}," for number in numbers)


def as_bytes(x: NDArray) -> NDArray:
    """The bytes of float32 or float64 values, uint8, shape (bytes,)."""
    return call("as_bytes", (x,), dtype=np.dtype(x.dtype).name)


def sum_rows(rows: NDArray, dtype: str) -> NDArray:
    """The sum of the rows, in their order.

    Each row of `rows`, uint8, shape (rows, bytes), has the bytes of values of this dtype.
    """
    return call("sum_rows", (rows,), dtype=dtype)


@dataclass(frozen=True)
class MessageRows:
    """The layout of a message of several parts in the rows of a row_sparse float32 array.

    Parameters
    ----------
    parts : tuple of (int, int or None)
        For each part, its length in bytes and None. If its length varies: the maximum length, and
        the offset of a uint32 with the number of bytes from that offset on. A message with such a
        part takes only the rows that it needs.
    in_one : bool
        Whether the message is always one row, however short it is. A worker that pulls it then need
        not ask for the number of rows.
    """

    parts: Tuple[Tuple[int, Optional[int]], ...]
    in_one: bool = False

    @property
    def varies(self) -> bool:
        """Whether the length of the message may vary."""
        return any(length_at is not None for _, length_at in self.parts)

    @cached_property
    def _rows(self) -> kernels.Rows:
        """The layout that the library computes."""
        return kernels.message_rows(sum(most for most, _ in self.parts), self.varies, self.in_one)

    @property
    def row_words(self) -> int:
        return self._rows.row_words

    @property
    def count(self) -> int:
        """The maximum number of rows of a message."""
        return self._rows.rows

    def framing(self) -> Dict[str, int]:
        """Attributes for operators that read messages."""
        return dict(row_words=self.row_words, message_rows=self.count)

    def framing_at(self, place: int, places: int) -> Dict[str, int]:
        """Attributes for operators that write the message at position `place` of `places`."""
        return dict(row=place * self.count, rows=places * self.count, **self.framing())

    def listed(self) -> Dict[str, str]:
        """Attributes with the parts, for messages without a codec."""
        parts = (f"{most}" if at is None else f"{most}@{at}" for most, at in self.parts)
        return dict(parts=";".join(parts))


def frame(
    parts: Sequence[NDArray],
    rows: MessageRows,
    place: int,
    places: int,
    out: Optional[RowSparseNDArray] = None,
) -> RowSparseNDArray:
    """Make a message of these parts (uint8). It begins at row ``place * rows.count``, of `places`.

    The words look like ordinary floats, so MXNet's server can add 0.0 to them without changing
    them.
    """
    return call("frame", parts, out, **rows.listed(), **rows.framing_at(place, places))


def rows_left(first_rows: RowSparseNDArray, rows: MessageRows, places: int = 1) -> NDArray:
    """Numbers of the rows that messages have besides their first rows, int64; they may repeat."""
    left = call("rows_left", (first_rows,), count=places, **rows.listed(), **rows.framing())
    return left.reshape((-1,))


def keep_rows(rows: RowSparseNDArray, kept: RowSparseNDArray) -> NDArray:
    """Copy rows to the same rows of `kept`, which has all; return their number, shape (1,)."""
    return call("keep_rows", (rows, kept))


def unframe(
    framed: Sequence[RowSparseNDArray], rows: MessageRows, places: int = 1
) -> List[NDArray]:
    """The parts of the first `places` messages, uint8, each of shape (places, maximum bytes).

    The rows may be spread over several arrays. The end of a part with fewer bytes is undefined. The
    operator fails if a row is missing, or if it has words that are not framed.
    """
    attributes = dict(arrays=len(framed), count=places, **rows.listed(), **rows.framing())
    parts = call("unframe", framed, **attributes)
    return parts if isinstance(parts, list) else [parts]
