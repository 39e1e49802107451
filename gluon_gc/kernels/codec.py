"""A compressor with its options, for arrays of one size: what the library makes payloads with."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..log import logger
from .library import (
    CUDA,
    TICKET_BYTES,
    Call,
    Needs,
    Position,
    Status,
    address_of,
    check,
    compressors,
    isa_number,
    library,
    output_of,
)

_ITEMSIZES = {"float32": 4, "float64": 8}

Layout = Dict[str, Tuple[Tuple[int, ...], str]]
"""Shape and dtype of arrays, by name."""


class State(NamedTuple):
    """What a codec keeps from call to call; zeros to begin with, and updated in place.

    Parameters
    ----------
    momentum : array of T, shape (n,), or None
        With "mu".
    memory : tuple of arrays of T
        With error feedback, in the sizes that `Codec.memory` says.
    """

    momentum: Optional[np.ndarray] = None
    memory: Tuple[np.ndarray, ...] = ()


def runs_on_gpu(source: str) -> bool:
    """Whether this process can run kernels of operators/cuda; if not, the log says why, once."""
    why_not = library.gluon_gc_cuda_ready(source.encode())
    if why_not is not None:
        _say(why_not.decode())
    return why_not is None


@lru_cache(maxsize=None)
def _say(why_not: str) -> None:
    logger.warning("gradients on a GPU are copied to the CPU to be compressed: %s", why_not)


def position(state: Sequence[int] = (0, 0), draws: int = 0) -> Position:
    """The place in the random stream that is `draws` draws on from a state of two words."""
    return Position((ctypes.c_uint64 * 2)(*map(int, state)), draws)


_NOTHING, _START = State(), position()


class Codec:
    """Compresses, aggregates and decodes n elements of T; keeps nothing.

    Arrays must be C-contiguous and of the stated dtype; nothing is converted. Neither `threads` nor
    `isa` changes a bit of what comes out. One call at a time, since calls share the workspace.

    Parameters
    ----------
    name : str
        One of `names`.
    options : mapping
        The compressor's own, and "ef" and "mu" (`gluon_gc.compression`).
    n : int
        Number of elements.
    dtype : "float32" or "float64"
        T.
    isa : str, optional
        One of `isas`; by default the best. Or "cuda", for a GPU that reaches all memory of this
        process: calls are queued there, and payloads are not checked.
    stream : int, optional
        The CUstream that they are queued in; by default the default stream.

    Attributes
    ----------
    isa : str or None
    traits : Traits
    payload_bytes : int
        Of a payload, at most.
    memory : tuple of int
        Elements of each array that error feedback keeps.
    momentum : int
        Elements of the array that momentum keeps, or 0.
    draws : int
        That each compression takes from the random stream.
    length_at : int or None
        Where a payload of varying length has the uint32 that says how many bytes it has from there.

    Raises
    ------
    ValueError
        There is no such compressor, or its options do not fit n elements.
    TypeError
        Another dtype.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        n: int,
        dtype: Any = "float32",
        isa: Optional[str] = None,
        stream: Optional[int] = None,
    ) -> None:
        self.n, self.dtype = n, np.dtype(dtype)
        if self.dtype.name not in _ITEMSIZES:
            raise TypeError(f"dtype must be float32 or float64, got {self.dtype}")
        handle = ctypes.c_void_p()
        text = as_text(options).encode()
        size = _ITEMSIZES[self.dtype.name]
        number = CUDA if isa == "cuda" else isa_number(isa)
        check(library.gluon_gc_new(name.encode(), text, n, size, number, ctypes.byref(handle)))
        self._handle, self._stream, self.isa = handle, stream, isa
        needs = Needs()
        library.gluon_gc_need(handle, ctypes.byref(needs))
        self.traits = compressors()[name]
        self.payload_bytes = needs.payload_bytes
        arrays = 2 if needs.memory[1] else 1 if needs.memory[0] else 0
        self.memory = tuple(needs.memory[:arrays])
        self.momentum = needs.momentum
        self.draws = needs.draws
        self.length_at = needs.length_at if needs.length_at >= 0 else None
        self.workspace_bytes = needs.workspace_bytes
        self._workspace: Optional[np.ndarray] = None  # made when first used
        self._ticket = np.zeros(TICKET_BYTES, np.uint8)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            library.gluon_gc_free(self._handle)

    def state(self) -> State:
        """What it keeps, to begin with."""
        momentum = np.zeros(self.momentum, self.dtype) if self.momentum else None
        return State(momentum, tuple(np.zeros(size, self.dtype) for size in self.memory))

    def saved_layout(self) -> Layout:
        """Shape and dtype of each array that a checkpoint keeps for it, by name.

        "stream" is the state of the random stream, of a compressor that draws; "residual" is that
        of error feedback, in whatever form the memory has it; "momentum" is as in `State`.
        """
        layout: Layout = {}
        if self.traits.draws:
            layout["stream"] = (2,), "uint64"
        if self.memory:
            layout["residual"] = (self.n,), self.dtype.name
        if self.momentum:
            layout["momentum"] = (self.momentum,), self.dtype.name
        return layout

    def used(self, payload: np.ndarray) -> int:
        """How many bytes of a payload (uint8, as many as there is room for) are in use.

        Raises
        ------
        ValueError
            It says that it is longer than that.
        """
        if self.length_at is None:
            return self.payload_bytes
        (length,) = payload[self.length_at :][:4].view(np.uint32)
        used = self.length_at + int(length)
        if used > payload.size:
            raise ValueError(f"a payload of at most {payload.size} bytes says it has {used}")
        return used

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
        """Compress p, which is values * (scale * factor) after momentum and error feedback.

        Parameters
        ----------
        values : array of T, shape (n,)
        state : State
        position : Position
            Where it draws.
        scale : float
        factor : array of float64, shape (1,), optional
            It may be known only when the call is run, on a GPU.
        ratio : float
            Previous learning rate over the current one, for feedback that is not "vanilla".
        payload : array of uint8, shape (payload_bytes,), optional
            Where to write.

        Returns
        -------
        payload : array of uint8, shape (payload_bytes,)
        status : Status
            If an element is not finite, the payload decodes to what is not, and `state` is zeros.
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
        """Compress the sum of what the rows of `payloads` decode to, added in their order.

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
            **_named(self.rows(payloads)),
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
        """Decode a payload, or add up what several decode to, the first row first.

        Parameters
        ----------
        payloads : array of uint8, shape (bytes,) or (count, bytes)
            Each row contiguous.
        position : Position
            As compress had it.
        out : array of T, shape (n,), optional
            Where to write.
        add : bool
            Add to what is in `out`.

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
            **_named(self.rows(payloads)),
        )
        return out, status

    def valid(self, payload: np.ndarray) -> bool:
        """Whether an array of uint8 begins with a payload that can be decoded."""
        address = address_of("payload", payload, payload.size, np.uint8)
        return bool(library.gluon_gc_valid(self._handle, address, payload.size))

    def residual(self, state: State) -> np.ndarray:
        """What error feedback will add to the next p."""
        residual = np.empty(self.n, self.dtype)
        self._run("residual", state, values=residual.ctypes.data)
        return residual

    def restore(self, state: State, residual: np.ndarray) -> None:
        """Set the memory so that the next p has exactly this residual added."""
        self._run("restore", state, values=address_of("residual", residual, self.n, self.dtype))

    @property
    def handle(self) -> ctypes.c_void_p:
        """What the library knows it as."""
        return self._handle

    def rows(self, payloads: np.ndarray) -> Tuple[int, int, int]:
        """Payloads as the library takes them: where they are, from row to row, and how many."""
        rows = payloads if payloads.ndim == 2 else payloads[None]
        if rows.shape[1] < self.payload_bytes:
            raise ValueError(
                f"payloads must have at least {self.payload_bytes} bytes each, got {rows.shape[1]}"
            )
        count, size = rows.shape
        address = address_of("payloads", rows[0], size, np.uint8) if count else 0
        return address, rows.strides[0], count

    def _run(self, function: str, state: State = _NOTHING, **fields: Any) -> Status:
        status = Status()
        if state.momentum is None and self.momentum and function in ("compress", "aggregate"):
            raise ValueError("a codec with momentum needs it in its state")
        momentum, memory = None, (ctypes.c_void_p * 2)()
        if function in ("compress", "aggregate", "residual", "restore"):
            momentum, memory = carried_by(self, state)
        if self._workspace is None:
            self._workspace = np.empty(self.workspace_bytes + 64, np.uint8)
        start = self._workspace.ctypes.data
        call = Call(
            codec=self._handle,
            momentum=momentum,
            memory=memory,
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


def carried_by(codec: Codec, state: State) -> Tuple[Optional[int], Any]:
    """Where a codec's momentum and memory are, as the library takes them.

    Raises
    ------
    ValueError, TypeError
        They are not what the codec keeps.
    """
    momentum = address_of("momentum", state.momentum, codec.momentum, codec.dtype, writes=True)
    given, needed = len(state.memory), len(codec.memory)
    if given != needed:
        raise ValueError(f"memory must be {needed} arrays, got {given}")
    memory = (ctypes.c_void_p * 2)()
    for i, (array, size) in enumerate(zip(state.memory, codec.memory)):
        memory[i] = address_of("memory", array, size, codec.dtype, writes=True)
    return momentum, memory


def _named(rows: Tuple[int, int, int]) -> Mapping[str, int]:
    return dict(zip(("payloads", "stride", "count"), rows))


def as_text(options: Mapping[str, Any]) -> str:
    """Options as the library reads them."""
    return "".join(f"{name}={_value(value)}\n" for name, value in options.items())


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "".join(f"{float(element)!r}," for element in value)
    return str(value) if isinstance(value, str) else repr(value)
