"""Loads the compiled library into MXNet, and wraps its operators in typed functions.

Every call is queued on MXNet's engine and returns at once. An error in an operator is raised where
its output is next waited for.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Iterable, Mapping, Sequence, Tuple

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

Offsets = Tuple[Tuple[int, int], ...]
"""For each chunk or slice of a message: the index of its gradient, and its offset there."""


def call(
    name: str, inputs: Sequence[NDArray], out: NDArray | None = None, **attributes: Any
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

    One long attribute costs less time than many short ones. Unchanged text is cached.
    """

    def __init__(self, **shared: Any) -> None:
        self._shared = shared
        self._cache: dict[Any, str] = {}

    def __call__(
        self,
        operator: str,
        layout: Mapping[str, Any],
        gradients: int = 0,
        offsets: Offsets = (),
        **values: Any,
    ) -> dict[str, str]:
        """The attribute for one call; `layout` rarely changes between calls of this operator."""
        key = operator, gradients, offsets, *layout.values()
        if key not in self._cache:
            if len(self._cache) == _CACHED:
                self._cache.clear()
            fields = {"gradients": gradients, **layout, **self._shared}
            if offsets:
                fields["tensors"], fields["begins"] = map(listed, zip(*offsets))
            self._cache[key] = _lines(fields)
        return {"message": _lines(values) + self._cache[key]}


def _lines(fields: Mapping[str, Any]) -> str:
    return "".join([f"{name}={value}\n" for name, value in fields.items()])


def refusing(names: Sequence[str]) -> dict[str, str]:
    """The attribute with the tensors' names in errors about NaNs and infinities; "": no error."""
    return {"refused": "\n".join(names)} if any(names) else {}


def clip_factor(gradients: Sequence[NDArray], scale: float, max_norm: float) -> NDArray:
    """The factor that clips the l2 norm of scale * gradients to `max_norm`; float64, shape (1,)."""
    attributes = dict(gradients=len(gradients), scale=repr(scale), max_norm=repr(max_norm))
    return call("clip", gradients, **attributes)


def new_meter() -> NDArray:
    return mx.nd.array(np.zeros(len(METER) + 3 * KEPT_SPANS), mx.cpu(), "float64")


def read_meter(meter: NDArray) -> dict[str, float]:
    """A meter's fields, by the names in METER; waits for all operators that update it."""
    return dict(zip(METER, meter.asnumpy()[: len(METER)].tolist()))


def listed(numbers: Iterable[int]) -> str:
    """Whole numbers as an attribute's text."""
    return "".join(f"{number}," for number in numbers)


def as_bytes(x: NDArray) -> NDArray:
    """The bytes of float32 or float64 values, uint8, shape (bytes,)."""
    return call("as_bytes", (x,), dtype=np.dtype(x.dtype).name)


def sum_rows(rows: NDArray, dtype: str) -> NDArray:
    """The sum of the rows in their order; a row, uint8, has the bytes of values of this dtype."""
    return call("sum_rows", (rows,), dtype=dtype)


@dataclass(frozen=True)
class MessageRows:
    """The layout of a message of several parts in the rows of a row_sparse float32 array."""

    # For each part: its length in bytes and None; or, if its length varies, the maximum length and
    # the offset of a uint32 with the number of bytes from that offset on. A message with such a
    # part takes only the rows that it needs, unless it always is `in_one` row, however short it is:
    # a worker that pulls it then need not ask for the number of rows.
    parts: tuple[tuple[int, int | None], ...]
    in_one: bool = False

    @property
    def varies(self) -> bool:
        return any(length_at is not None for _, length_at in self.parts)

    @cached_property
    def _rows(self) -> kernels.Rows:
        return kernels.message_rows(sum(most for most, _ in self.parts), self.varies, self.in_one)

    @property
    def row_words(self) -> int:
        return self._rows.row_words

    @property
    def count(self) -> int:
        """The maximum number of rows of a message."""
        return self._rows.rows

    def framing(self) -> dict[str, int]:
        """Attributes for operators that read messages."""
        return dict(row_words=self.row_words, message_rows=self.count)

    def framing_at(self, number: int, count: int) -> dict[str, int]:
        """Attributes for operators that write the message `number` of `count`."""
        return dict(row=number * self.count, rows=count * self.count, **self.framing())

    def listed(self) -> dict[str, str]:
        """Attributes with the parts, for messages without a codec."""
        parts = (f"{most}" if at is None else f"{most}@{at}" for most, at in self.parts)
        return dict(parts=";".join(parts))


def frame(
    parts: Sequence[NDArray],
    rows: MessageRows,
    number: int,
    count: int,
    out: RowSparseNDArray | None = None,
) -> RowSparseNDArray:
    """Make message `number` of `count` from uint8 parts, in words that look like floats."""
    return call("frame", parts, out, **rows.listed(), **rows.framing_at(number, count))


def rows_left(first_rows: RowSparseNDArray, rows: MessageRows, count: int = 1) -> NDArray:
    """The numbers of the rows that follow the messages' first rows, int64; they may repeat."""
    left = call("rows_left", (first_rows,), count=count, **rows.listed(), **rows.framing())
    return left.reshape((-1,))


def keep_rows(rows: RowSparseNDArray, kept: RowSparseNDArray) -> NDArray:
    """Copy rows to the same rows of `kept`, which has all; return their number, shape (1,)."""
    return call("keep_rows", (rows, kept))


def unframe(framed: Sequence[RowSparseNDArray], rows: MessageRows, count: int = 1) -> list[NDArray]:
    """The parts of the first `count` messages, uint8, each of shape (count, maximum bytes).

    `framed` may have the rows in several arrays. The operator fails if a row is missing, or if it
    has words that are not framed.
    """
    attributes = dict(arrays=len(framed), count=count, **rows.listed(), **rows.framing())
    parts = call("unframe", framed, **attributes)
    return parts if isinstance(parts, list) else [parts]
