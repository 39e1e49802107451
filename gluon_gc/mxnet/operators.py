"""Loads the compiled library into MXNet, and gives its operators typed functions.

Every call is queued on MXNet's engine and returns at once; an error in an operator surfaces where
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

from .. import kernels

if not hasattr(kernels.library, "_opRegSize"):
    raise ImportError(
        f"{kernels.PATH} was built where there was no MXNet: install gluon_gc again, with MXNet"
    )

# mx.library.load would generate the functions of all of MXNet's operators again, which takes longer
# than to import MXNet.
check_call(_LIB.MXLoadLib(str(kernels.PATH).encode(), 0))

METER = ("calls", "sent_bytes", "received_bytes")
METER += ("compress_seconds", "compressed_at", "wait_seconds", "decompress_seconds", "nonfinite")
"""What the first elements of a meter are: operators/mxnet/meter.h."""
KEPT_SPANS = 64
"""Of how many of the latest steps it then has number, begin and end."""

_MADE = 64  # attributes that a `MessageAttribute` keeps

Places = Tuple[Tuple[int, int], ...]
"""For each chunk or slice of a message, which gradient it is of and where it begins in it."""


def call(
    name: str, inputs: Sequence[NDArray], out: Optional[NDArray] = None, **attributes: Any
) -> Any:
    """Queue the operator gluon_gc_NAME; what it takes is said where it is made."""
    names, values = list(attributes), list(attributes.values())
    return _imperative_invoke(_handle(name), inputs, names, values, out, False, False)


@lru_cache(maxsize=None)
def _handle(name: str) -> int:
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(f"gluon_gc_{name}".encode(), ctypes.byref(handle)))
    return handle.value


class MessageAttribute:
    """The attribute "message" of operators: all fields of a message as lines of text.

    One attribute costs less than many. The part that stays the same from call to call is kept.

    Parameters
    ----------
    **shared
        The fields that all operators get.
    """

    def __init__(self, **shared: Any) -> None:
        self._shared = shared
        self._made: Dict[Any, str] = {}

    def __call__(
        self,
        operator: str,
        layout: Mapping[str, Any],
        gradients: int = 0,
        places: Places = (),
        **values: Any,
    ) -> Dict[str, str]:
        """The attribute for a call of an operator.

        Parameters
        ----------
        operator : str
        layout : mapping
            Fields that are mostly the same when the operator is called again.
        gradients : int
            How many arrays the gradients are.
        places : Places
            Where the chunks are in these arrays.
        **values
            Fields that change from call to call.
        """
        key = operator, gradients, places, *layout.values()
        if key not in self._made:
            if len(self._made) == _MADE:
                self._made.clear()
            fields = {"gradients": gradients, **layout, **self._shared}
            if places:
                fields["tensors"], fields["begins"] = map(listed, zip(*places))
            self._made[key] = _lines(fields)
        return {"message": _lines(values) + self._made[key]}


def _lines(fields: Mapping[str, Any]) -> str:
    return "".join([f"{name}={value}\n" for name, value in fields.items()])


def refusing(names: Sequence[str]) -> Dict[str, str]:
    """What operators are told to call what is not finite, where that is an error, or ""."""
    return {"refused": "\n".join(names)} if any(names) else {}


def clip_factor(gradients: Sequence[NDArray], scale: float, max_norm: float) -> NDArray:
    """By which to multiply scale * gradients so that the l2 norm of all is at most `max_norm`.

    float64, shape (1,); not finite, or 0, where the norm is not finite.
    """
    attributes = dict(gradients=len(gradients), scale=repr(scale), max_norm=repr(max_norm))
    return call("clip", gradients, **attributes)


def new_meter() -> NDArray:
    """A meter that says that nothing was done."""
    return mx.nd.array(np.zeros(len(METER) + 3 * KEPT_SPANS), mx.cpu(), "float64")


def read_meter(meter: NDArray) -> Dict[str, float]:
    """What a meter says, by the names of METER; waits until all that updates it is done."""
    return dict(zip(METER, meter.asnumpy()[: len(METER)].tolist()))


def read_spans(meter: NDArray) -> List[Tuple[float, float, float]]:
    """Of the latest steps in order their number, and when they began and ended, in seconds."""
    spans = meter.asnumpy()[len(METER) :].reshape(KEPT_SPANS, 3)
    return sorted(map(tuple, spans[spans[:, 0] > 0].tolist()))


def now_in(meter: NDArray) -> np.ndarray:
    """The memory of a meter, for `messages_in`; good as long as the meter is."""
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(meter.handle, ctypes.byref(address)))
    return np.ctypeslib.as_array((ctypes.c_double * meter.size).from_address(address.value))


def messages_in(memory: np.ndarray) -> Tuple[int, bool]:
    """How many messages were made, and if what came back of the last is not delivered yet.

    It is of this moment: what updates the meter is not waited for.
    """
    calls = int(memory[0])
    _, begin, end = memory[len(METER) + 3 * (calls % KEPT_SPANS) :][:3]
    return calls, calls > 0 and bool(begin == end)


def listed(numbers: Iterable[int]) -> str:
    """Whole numbers as an attribute."""
    return "".join(f"{number}," for number in numbers)


def as_bytes(x: NDArray) -> NDArray:
    """The bytes of float32 or float64 values, uint8, shape (bytes,)."""
    return call("as_bytes", (x,), dtype=np.dtype(x.dtype).name)


def sum_rows(rows: NDArray, dtype: str) -> NDArray:
    """The sum of values whose bytes are rows, uint8, shape (rows, bytes), in the rows' order."""
    return call("sum_rows", (rows,), dtype=dtype)


@dataclass(frozen=True)
class MessageRows:
    """How a message of several parts lies in the rows of a row_sparse float32 array.

    Parameters
    ----------
    parts : tuple of (int, int or None)
        For each part its length in bytes, or the most that it can be, and then where it says how
        many bytes there are from there on. A message with such a part takes only the rows that it
        needs.
    in_one : bool
        It has one row, however short it is: who pulls it need not ask how many rows there are.
    """

    parts: Tuple[Tuple[int, Optional[int]], ...]
    in_one: bool = False

    @property
    def varies(self) -> bool:
        """Whether its length may vary."""
        return any(length_at is not None for _, length_at in self.parts)

    @cached_property
    def _rows(self) -> kernels.Rows:
        """The library's answer."""
        return kernels.message_rows(sum(most for most, _ in self.parts), self.varies, self.in_one)

    @property
    def row_words(self) -> int:
        return self._rows.row_words

    @property
    def count(self) -> int:
        """The most rows that a message takes."""
        return self._rows.rows

    def framing(self) -> Dict[str, int]:
        """What operators that read messages are told."""
        return dict(row_words=self.row_words, message_rows=self.count)

    def framing_at(self, place: int, places: int) -> Dict[str, int]:
        """What operators that write the message in the given of so many places are told."""
        return dict(row=place * self.count, rows=places * self.count, **self.framing())

    def listed(self) -> Dict[str, str]:
        """What operators are told of the parts, if these are not a codec's."""
        parts = (f"{most}" if at is None else f"{most}@{at}" for most, at in self.parts)
        return dict(parts=";".join(parts))


def frame(
    parts: Sequence[NDArray],
    rows: MessageRows,
    place: int,
    places: int,
    out: Optional[RowSparseNDArray] = None,
) -> RowSparseNDArray:
    """A message of these parts (uint8) in the rows from ``place * rows.count`` on, of `places`.

    The words look like ordinary floats, which MXNet's server may add 0.0 to without changing them.
    """
    return call("frame", parts, out, **rows.listed(), **rows.framing_at(place, places))


def rows_left(first_rows: RowSparseNDArray, rows: MessageRows, places: int = 1) -> NDArray:
    """Numbers of the rows that messages have beside their first ones, int64; they may repeat."""
    left = call("rows_left", (first_rows,), count=places, **rows.listed(), **rows.framing())
    return left.reshape((-1,))


def keep_rows(rows: RowSparseNDArray, kept: RowSparseNDArray) -> NDArray:
    """Copy rows to where they are in `kept`, which has all; returns how many, shape (1,)."""
    return call("keep_rows", (rows, kept))


def unframe(
    framed: Sequence[RowSparseNDArray], rows: MessageRows, places: int = 1
) -> List[NDArray]:
    """Each part of the messages of the first `places`, uint8, shape (places, its most bytes).

    Their rows may be spread over several arrays. What a part does not fill is undefined. The
    operator fails if a row is missing or holds anything but framed words.
    """
    attributes = dict(arrays=len(framed), count=places, **rows.listed(), **rows.framing())
    parts = call("unframe", framed, **attributes)
    return parts if isinstance(parts, list) else [parts]
