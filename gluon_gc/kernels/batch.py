"""A call of the library for several codecs at once, prepared once and repeated in each step."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from .codec import Codec
from .handle import addresses
from .library import Call, Position, StateAddresses, Status, address_of, check, library
from .state import State

Addresses = Tuple[StateAddresses, Optional[Any]]
"""Where a call writes a codec's state, and a pointer to the earlier state; None: in place."""


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
    states : sequence of State, optional
        The state of each codec, for "compress" and "aggregate". It is updated in place.
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
    """

    def __init__(
        self,
        function: str,
        codecs: Sequence[Codec],
        states: Optional[Sequence[State]] = None,
        payload: Optional[Sequence[np.ndarray]] = None,
        payloads: Optional[Sequence[np.ndarray]] = None,
        workspaces: Optional[Sequence[int]] = None,
    ) -> None:
        count = len(codecs)
        self._function = getattr(library, "gluon_gc_" + function)
        self._calls, self.statuses = (Call * count)(), (Status * count)()
        workspace = None
        if workspaces is None:
            size = max((codec.workspace_bytes for codec in codecs), default=0)
            workspace = np.empty(size + 64, np.uint8)
            start = workspace.ctypes.data
            workspaces = [start + -start % 64] * count
        self._codecs = codecs
        self._kept = [states, payload, payloads, workspace]  # the calls hold their addresses
        for i, (call, codec) in enumerate(zip(self._calls, codecs)):
            call.threads = 1
            call.workspace = workspaces[i]
            call.status = ctypes.pointer(self.statuses[i])
            if states is not None:
                call.state = addresses(codec, states[i])
            if payload is not None:
                call.payload = address_of(
                    "payload", payload[i], codec.payload_bytes, np.uint8, writes=True
                )
            if payloads is not None:
                rows = codec.rows(payloads[i])
                call.payloads, call.stride, call.count = (
                    rows["payloads"],
                    rows["stride"],
                    rows["count"],
                )

    def __call__(
        self,
        values: Optional[Sequence[int]] = None,
        positions: Optional[Sequence[Position]] = None,
        scale: float = 1.0,
        ratios: Optional[Sequence[float]] = None,
        states: Optional[Sequence[Addresses]] = None,
    ) -> None:
        """Call the function.

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
        states : sequence of (StateAddresses, pointer to StateAddresses or None), optional
            For each codec, the state that this call writes, and the `earlier` state of
            `Codec.compress`. The caller keeps the arrays. By default the states of the constructor
            are updated in place.

        Raises
        ------
        ValueError
            A payload is not valid.
        """
        for i, call in enumerate(self._calls):
            call.codec = self._codecs[i].handle  # `set_options` replaces it
            call.scale = scale
            call.ratio = 1.0 if ratios is None else ratios[i]
            if values is not None:
                call.values = values[i]
            if positions is not None:
                call.position = positions[i]
            if states is not None:
                call.state, call.earlier = states[i]
        if len(self._calls):
            check(self._function(self._calls, len(self._calls)))
