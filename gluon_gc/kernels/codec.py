"""The codec: a compressor with its options, for arrays of one size and dtype."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any, Optional, Tuple

import numpy as np

from .handle import CodecHandle, addresses
from .library import (
    TICKET_BYTES,
    Call,
    Position,
    StateAddresses,
    Status,
    address_of,
    check,
    library,
    output_of,
)
from .state import State, aligned_zeros, position

_NOTHING, _START = State(), position()


class Codec(CodecHandle):
    """Compresses, aggregates and decodes n elements of the dtype T.

    The caller keeps the state (residual, momentum, random stream). Arrays must be C-contiguous and
    of the stated dtype. Results are bit-identical for all values of `threads` and `isa`. Calls
    share a workspace, so only one may run at a time. See `CodecHandle` for parameters and
    attributes.
    """

    _workspace: Optional[np.ndarray] = None  # allocated at the first call

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
        earlier: Optional[State] = None,
    ) -> Tuple[np.ndarray, Status]:
        """Compress values after momentum and error feedback.

        With the options "mu" and "ef", where m is the momentum and e the residual in `state`:

            g = values * scale * factor
            m = mu m + g,  g = g + mu m
            p = g + ratio * e
            payload = C(p),  e = p - D(payload)

        C compresses and D decodes. dgc has its own momentum and accumulation.

        Parameters
        ----------
        values : array of T, shape (n,)
        state : State
            It is updated, in place if `earlier` is omitted.
        position : Position
            The position in the random stream.
        scale : float
        factor : array of float64, shape (1,), optional
            Default 1. On a GPU it is read when the call runs, not when it is queued.
        ratio : float
            The previous learning rate over the current one. Not used if "ef" is "vanilla".
        payload : array of uint8, shape (payload_bytes,), optional
            Where to write. By default a new array.
        earlier : State, optional
            The state before the call. It is not changed. All elements of `state` are written, so
            their values before the call do not matter.

        Returns
        -------
        payload : array of uint8, shape (payload_bytes,)
        status : Status
            If an element is not finite, `finite` is 0, the payload decodes to values that are not
            finite, and `state` is set to zeros.
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
            earlier=earlier,
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
        earlier: Optional[State] = None,
    ) -> Tuple[np.ndarray, Status]:
        """Decode payloads, add them in the order of their rows, and compress the sum.

        Parameters
        ----------
        payloads : array of uint8, shape (count, bytes)
            Each row must be contiguous.
        payload : array of uint8, shape (payload_bytes,), optional
            Where to write. By default a new array.
        earlier : State, optional
            See `compress`.

        Returns
        -------
        payload, status
            See `compress`.

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
            earlier=earlier,
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
        """Decode a payload, or decode several payloads and add them in the order of their rows.

        Parameters
        ----------
        payloads : array of uint8, shape (bytes,) or (count, bytes)
            Each row must be contiguous.
        position : Position
            The position that `compress` had. Needed by compressors with the trait `draws_alike`.
        out : array of T, shape (n,), optional
            Where to write. By default a new array.
        add : bool
            Whether to add to the values in `out`.

        Returns
        -------
        out : array of T, shape (n,)
        status : Status

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
        """The residual that error feedback adds in the next call. Array of T, shape (n,)."""
        residual = np.empty(self.n, self.dtype)
        self._run("residual", state, values=residual.ctypes.data)
        return residual

    def restore(self, state: State, residual: np.ndarray) -> None:
        """Set the memory in `state` so that error feedback adds this residual in the next call."""
        self._run("restore", state, values=address_of("residual", residual, self.n, self.dtype))

    def _run(
        self,
        function: str,
        state: Optional[State] = None,
        earlier: Optional[State] = None,
        **fields: Any,
    ) -> Status:
        status = Status()
        if state is not None:
            fields["state"] = self._addresses("state", state, function)
        if earlier is not None:
            fields["earlier"] = ctypes.pointer(self._addresses("earlier", earlier, function))
        if self._workspace is None:
            self._workspace = aligned_zeros(self.workspace_bytes, np.uint8)
        call = Call(
            codec=self._handle,
            workspace=self._workspace.ctypes.data,
            status=ctypes.pointer(status),
            stream=self._stream,
            ticket=self._ticket.ctypes.data,
            **fields,
        )
        self._invoke(function, call)
        return status

    def _addresses(self, name: str, state: State, function: str) -> StateAddresses:
        """The addresses of an argument of `compress`, `aggregate`, `residual` or `restore`."""
        if state.momentum is None and self.momentum and function in ("compress", "aggregate"):
            raise ValueError(
                f"{name}.momentum must be an array for a codec with momentum, got None"
            )
        return addresses(self, state)

    def _invoke(self, function: str, call: Call) -> None:
        check(getattr(library, "gluon_gc_" + function)(ctypes.byref(call), 1))
