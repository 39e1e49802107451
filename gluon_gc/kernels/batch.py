"""One call of the library for several codecs, made ready beforehand."""

from __future__ import annotations

import ctypes
from typing import Optional, Sequence

import numpy as np

from .codec import Codec, State, carried_by
from .library import Call, Position, Status, address_of, check, library


class Batch:
    """Calls one function for each of several codecs, which differ in n alone, step after step.

    What stays the same is checked and looked up once, so that a call costs little. One call at a
    time, as of a codec.

    Parameters
    ----------
    function : str
        "compress", "aggregate", "decompress" or "inspect".
    codecs : sequence of Codec
        For the CPU.
    states : sequence of State, optional
        What each keeps, where it compresses.
    payload : sequence of array of uint8, shape (payload_bytes,), optional
        Where each writes its payload.
    payloads : sequence of array of uint8, shape (count, bytes), optional
        What each reads: rows, each contiguous.
    workspaces : sequence of int, optional
        Where the workspace of each is in memory; by default all share one.

    Attributes
    ----------
    statuses : array of Status
        Of each codec after a call.
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
            most = max((codec.workspace_bytes for codec in codecs), default=0)
            workspace = np.empty(most + 64, np.uint8)
            start = workspace.ctypes.data
            workspaces = [start + -start % 64] * count
        self._kept = [codecs, states, payload, payloads, workspace]  # as long as the calls are
        for i, (call, codec) in enumerate(zip(self._calls, codecs)):
            call.codec, call.scale, call.ratio, call.threads = codec.handle, 1.0, 1.0, 1
            call.workspace = workspaces[i]
            call.status = ctypes.pointer(self.statuses[i])
            if states is not None:
                call.momentum, call.memory = carried_by(codec, states[i])
            if payload is not None:
                call.payload = address_of(
                    "payload", payload[i], codec.payload_bytes, np.uint8, writes=True
                )
            if payloads is not None:
                rows = codec.rows(payloads[i])
                call.payloads, call.stride, call.count = rows

    def __call__(
        self,
        values: Optional[Sequence[int]] = None,
        positions: Optional[Sequence[Position]] = None,
        scale: float = 1.0,
        ratios: Optional[Sequence[float]] = None,
    ) -> None:
        """Call it.

        Parameters
        ----------
        values : sequence of int, optional
            Where the values of each codec are in memory: contiguous, of its dtype.
        positions : sequence of Position, optional
            Where each draws.
        scale : float
        ratios : sequence of float, optional
            As `Codec.compress` has them.

        Raises
        ------
        ValueError
            A payload is not valid.
        """
        for i, call in enumerate(self._calls):
            call.scale = scale
            if values is not None:
                call.values = values[i]
            if positions is not None:
                call.position = positions[i]
            if ratios is not None:
                call.ratio = ratios[i]
        if len(self._calls):
            check(self._function(self._calls, len(self._calls)))
