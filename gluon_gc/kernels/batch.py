"""A call of the library for several codecs at once, prepared once and repeated in each step."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Sequence

import numpy as np

from .codec import Codec
from .library import Call, Position, StateAddresses, Status, address_of, check, library
from .memory import aligned_zeros


class StateReference:
    """Where a codec's state is, in the form that a `Batch` passes to the library.

    Parameters
    ----------
    addresses : StateAddresses

    Attributes
    ----------
    in_place : StateOfCall
        For a call that updates this state.
    """

    def __init__(self, addresses: StateAddresses) -> None:
        self._addresses = addresses  # `_pointer` points to them
        self._words, self._pointer = bytes(addresses), bytes(ctypes.pointer(addresses))
        self.in_place: StateOfCall = self._words + bytes(len(self._pointer))

    def after(self, earlier: StateReference) -> StateOfCall:
        """Return the states of a call that reads an earlier state and writes this one."""
        return self._words + earlier._pointer


StateOfCall = bytes
"""The fields `state` and `earlier` of a Call."""

_FORMATS = {"codec": "u8", "values": "u8", "scale": "f8", "ratio": "f8", "state": ("u8", 4)}
_COLUMNS = np.dtype(
    {
        "names": [*_FORMATS],
        "formats": [*_FORMATS.values()],
        "offsets": [getattr(Call, name).offset for name in _FORMATS],
        "itemsize": ctypes.sizeof(Call),
    }
)
"""The fields of a Call that change in each step. An array of calls is filled column by column."""

_NEEDS = {
    "compress": ("values", "payload"),
    "aggregate": ("payload", "payloads"),
    "decompress": ("values", "payloads"),
    "inspect": ("payloads",),
}
"""The arrays that each function reads or writes."""


class Batch:
    """Calls a function of the library for several codecs, which differ only in n.

    Arguments that stay the same are checked once, so a call costs little. Only one call may run at
    a time.

    Parameters
    ----------
    function : str
        "compress", "aggregate", "decompress" or "inspect".
    codecs : sequence of Codec
        Codecs for the CPU.
    payload : sequence of array of uint8, shape (payload_bytes,), optional
        Where each codec writes its payload.
    payloads : sequence of array of uint8, shape (count, bytes), optional
        The payloads that each codec reads. Each row must be contiguous.
    workspaces : sequence of int, optional
        The address of each codec's workspace. By default all codecs share one.

    Attributes
    ----------
    statuses : array of Status
        The status of each codec after a call.

    Raises
    ------
    ValueError
        There is no such function, or an array that it needs is missing or does not fit.
    """

    def __init__(
        self,
        function: str,
        codecs: Sequence[Codec],
        payload: Sequence[np.ndarray] | None = None,
        payloads: Sequence[np.ndarray] | None = None,
        workspaces: Sequence[int] | None = None,
    ) -> None:
        count = len(codecs)
        if function not in _NEEDS:
            raise ValueError(f"function must be one of {tuple(_NEEDS)}, got {function!r}")
        for name, arrays in (("payload", payload), ("payloads", payloads)):
            if arrays is not None:
                _require_one_each(name, arrays, count)
            elif name in _NEEDS[function] and any(codec.isa != "cuda" for codec in codecs):
                raise ValueError(f"{function} needs {name}, got None")
        self._needs_values = "values" in _NEEDS[function]
        self._function = getattr(library, "gluon_gc_" + function)
        self._calls, self.statuses = (Call * count)(), (Status * count)()
        workspace = None
        if workspaces is None:
            size = max((codec.workspace_bytes for codec in codecs), default=0)
            workspace = aligned_zeros(size, np.uint8)
            workspaces = [workspace.ctypes.data] * count
        self._codecs = codecs
        self._replaced, self._scale, self._has_ratios = -1, math.nan, True  # nothing is written yet
        columns = np.frombuffer(self._calls, _COLUMNS) if count else np.empty(0, _COLUMNS)
        self._columns = {name: columns[name] for name in columns.dtype.names}
        self._kept = [payload, payloads, workspace]  # the calls hold their addresses
        for i, (call, codec) in enumerate(zip(self._calls, codecs)):
            call.threads = 1
            call.workspace = workspaces[i]
            call.status = ctypes.pointer(self.statuses[i])
            if payload is not None:
                call.payload = address_of(
                    "payload", payload[i], codec.payload_bytes, np.uint8, writes=True
                )
            if payloads is not None:
                for name, value in codec.rows(payloads[i]).items():
                    setattr(call, name, value)

    def __call__(self, *arguments: Any, **named: Any) -> None:
        """Call the function for all codecs. The arguments are those of `prepare`."""
        self.prepare(*arguments, **named)
        self.run(0, len(self._calls))

    def prepare(
        self,
        values: Sequence[int] | None = None,
        positions: Sequence[Position] | None = None,
        scale: float = 1.0,
        ratios: Sequence[float] | None = None,
        states: Sequence[StateOfCall] | None = None,
    ) -> None:
        """Set the arguments of the calls that `run` makes.

        Parameters
        ----------
        values : sequence of int, optional
            The address of each codec's values, which must be contiguous and of its dtype.
        positions : sequence of Position, optional
            The position of each codec in its random stream.
        scale : float
            See `Codec.compress`.
        ratios : sequence of float, optional
            The ratio of each codec, 1 if omitted. See `Codec.compress`.
        states : sequence of StateOfCall, optional
            For each codec, the state that "compress" or "aggregate" writes, and the `earlier` state
            of `Codec.compress`. The caller keeps the arrays.

        Raises
        ------
        ValueError
            Values are missing, or an argument has not one for each codec.
        """
        count = len(self._calls)
        if not count:
            return
        if values is None and self._needs_values:
            raise ValueError("values must be the address of each codec's values, got None")
        columns = self._columns
        if self._replaced != Codec.replaced:
            self._replaced = Codec.replaced
            columns["codec"][:] = [codec.handle.value for codec in self._codecs]
        if scale != self._scale:
            columns["scale"][:] = self._scale = scale
        if ratios is not None:
            _require_one_each("ratios", ratios, count)
            columns["ratio"][:] = ratios
        elif self._has_ratios:
            columns["ratio"][:] = 1.0
        self._has_ratios = ratios is not None
        if values is not None:
            _require_one_each("values", values, count)
            columns["values"][:] = values
        if positions is not None:
            _require_one_each("positions", positions, count)
            for call, position in zip(self._calls, positions):
                call.position = position
        if states is not None:
            _require_one_each("states", states, count)
            columns["state"][:] = np.frombuffer(b"".join(states), np.uint64).reshape(count, 4)

    def run(self, begin: int, end: int) -> None:
        """Call the function for the codecs from `begin` to `end`.

        Raises ValueError if a payload is not valid.
        """
        count = end - begin
        if count:
            first = begin * ctypes.sizeof(Call)
            check(self._function((Call * count).from_buffer(self._calls, first), count))


def _require_one_each(name: str, given: Sequence, count: int) -> None:
    if len(given) != count:
        raise ValueError(f"{name} must be one for each of {count} codecs, got {len(given)}")
