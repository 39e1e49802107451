"""A codec: a compressor with its options, for arrays of one size."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any, Optional, Tuple

import numpy as np

from .handle import CodecHandle
from .library import TICKET_BYTES, Call, Position, Status, address_of, check, library, output_of
from .state import State, position

_NOTHING, _START = State(), position()


class Codec(CodecHandle):
    """Compresses, aggregates and decodes n elements of T. It has no state of its own.

    Arrays must be C-contiguous and of the stated dtype; nothing is converted. The results do not
    depend on `threads` and `isa`, to the bit. Calls share a workspace, so only one may run at a
    time. `CodecHandle` has the parameters and attributes.
    """

    _workspace: Optional[np.ndarray] = None  # made when first used

    @cached_property
    def _ticket(self) -> np.ndarray:
        return np.zeros(TICKET_BYTES, np.uint8)

    def compress(
        self,
        values: np.ndarray,
        state: State = _NOTHING,
        position: Position = _START,
        *,
        scale: float = 1.0,
        factor: Optional[np.ndarray] = None,
        ratio: float = 1.0,
        payload: Optional[np.ndarray] = None,
        threads: int = 1,
    ) -> Tuple[np.ndarray, Status]:
        """Compress p: values * (scale * factor) after momentum and error feedback.

        Parameters
        ----------
        values : array of T, shape (n,)
        state : State
        position : Position
            Where it draws.
        scale : float
        factor : array of float64, shape (1,), optional
            On a GPU it is read when the call runs, not when it is queued.
        ratio : float
            The previous learning rate over the current one, for feedback other than "vanilla".
        payload : array of uint8, shape (payload_bytes,), optional
            Where to write.

        Returns
        -------
        payload : array of uint8, shape (payload_bytes,)
        status : Status
            If an element is not finite, the payload decodes to values that are not finite, and
            `state` becomes zeros.
        """
        payload = output_of("payload", payload, self.payload_bytes, np.uint8)
        status = self._run(
            "compress",
            state,
            values=address_of("values", values, self.n, self.dtype),
            scale=scale,
            factor=address_of("factor", factor, 1, np.float64),
            ratio=ratio,
            position=position,
            payload=payload.ctypes.data,
            threads=threads,
        )
        return payload, status

    def aggregate(
        self,
        payloads: np.ndarray,
        state: State = _NOTHING,
        position: Position = _START,
        *,
        payload: Optional[np.ndarray] = None,
        threads: int = 1,
    ) -> Tuple[np.ndarray, Status]:
        """Decode the rows of `payloads`, add them in their order, and compress the sum.

        Parameters
        ----------
        payloads : array of uint8, shape (count, bytes)
            Each row contiguous.
        payload : array of uint8, shape (payload_bytes,), optional
            Where to write.

        Raises
        ------
        ValueError
            A payload is not `valid`.
        """
        payload = output_of("payload", payload, self.payload_bytes, np.uint8)
        status = self._run(
            "aggregate",
            state,
            scale=1.0,
            position=position,
            payload=payload.ctypes.data,
            threads=threads,
            **self.rows(payloads),
        )
        return payload, status

    def decompress(
        self,
        payloads: np.ndarray,
        position: Position = _START,
        *,
        out: Optional[np.ndarray] = None,
        add: bool = False,
        threads: int = 1,
    ) -> Tuple[np.ndarray, Status]:
        """Decode a payload, or decode several and add them in their order.

        Parameters
        ----------
        payloads : array of uint8, shape (bytes,) or (count, bytes)
            Each row contiguous.
        position : Position
            The position that compress had.
        out : array of T, shape (n,), optional
            Where to write.
        add : bool
            Whether to add to the values in `out`.

        Raises
        ------
        ValueError
            A payload is not `valid`.
        """
        out = output_of("out", out, self.n, self.dtype)
        status = self._run(
            "decompress",
            values=out.ctypes.data,
            position=position,
            add=add,
            threads=threads,
            **self.rows(payloads),
        )
        return out, status

    def residual(self, state: State) -> np.ndarray:
        """The residual that error feedback adds to the next p."""
        residual = np.empty(self.n, self.dtype)
        self._run("residual", state, values=residual.ctypes.data)
        return residual

    def restore(self, state: State, residual: np.ndarray) -> None:
        """Set the memory so that exactly this residual is added to the next p."""
        self._run("restore", state, values=address_of("residual", residual, self.n, self.dtype))

    def _run(self, function: str, state: Optional[State] = None, **fields: Any) -> Status:
        status = Status()
        if state is not None:
            if state.momentum is None and self.momentum and function in ("compress", "aggregate"):
                raise ValueError("a codec with momentum needs it in its state")
            fields.update(self.kept(state))
        if self._workspace is None:
            self._workspace = np.empty(self.workspace_bytes + 64, np.uint8)
        start = self._workspace.ctypes.data
        call = Call(
            codec=self._handle,
            workspace=start + -start % 64,
            status=ctypes.pointer(status),
            stream=self._stream,
            ticket=self._ticket.ctypes.data,
            **fields,
        )
        self._invoke(function, call)
        return status

    def _invoke(self, function: str, call: Call) -> None:
        check(getattr(library, "gluon_gc_" + function)(ctypes.byref(call), 1))
