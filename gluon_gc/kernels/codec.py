"""The codec: a compressor with its options, for arrays of one size and dtype."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any, ClassVar, Dict, Mapping, NamedTuple, NoReturn, Tuple

import numpy as np

from .library import (
    CUDA,
    TICKET_BYTES,
    Call,
    Needs,
    Position,
    StateAddresses,
    Status,
    address_of,
    check,
    compressors,
    isa_number,
    library,
    output_of,
)
from .memory import aligned_zeros
from .stream import position

Layout = Dict[str, Tuple[Tuple[int, ...], str]]
"""Shape and dtype of arrays, by name."""


class State(NamedTuple):
    """The arrays that a codec updates in each call. They are zeros before the first call.

    Parameters
    ----------
    momentum : array of T, shape (n,), or None
        The momentum, with the option "mu".
    memory : tuple of arrays of T
        The residual of error feedback, in the form that the compressor needs. `Codec.memory` has
        the sizes.
    """

    momentum: np.ndarray | None = None
    memory: tuple[np.ndarray, ...] = ()


def as_text(options: Mapping[str, Any]) -> str:
    """The options in the form that the library reads: a line "name=value" for each."""
    return "".join(f"{name}={_value(value)}\n" for name, value in options.items())


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "".join(f"{float(element)!r}," for element in value)
    if isinstance(value, np.generic):  # its repr differs between versions of NumPy
        value = value.item()
    return str(value) if isinstance(value, str) else repr(value)


_ITEMSIZES = {"float32": 4, "float64": 8}
_SIZES = ("payload_bytes", "memory", "momentum", "draws", "length_at", "workspace_bytes")
_NOTHING, _START = State(), position()


class Codec:
    """Compresses, aggregates and decodes n elements of the dtype T.

    The caller keeps the state (residual, momentum, random stream). Arrays must be C-contiguous and
    of the stated dtype. Results are bit-identical for all values of `threads` and `isa`. Calls
    share a workspace, so only one may run at a time.

    Parameters
    ----------
    name : str
        The name of the compressor, one of `names`.
    options : mapping
        The options of the compressor, and "ef" and "mu". See `gluon_gc.compression`.
    n : int
        Number of elements.
    dtype : "float32" or "float64"
        The dtype T of the elements.
    isa : str, optional
        The instruction set, one of `isas`. By default the best one. "cuda" for a GPU that can read
        all memory of this process: calls are queued, and payloads are not checked.
    stream : int, optional
        The CUstream in which calls are queued. By default the default stream.

    Attributes
    ----------
    isa : str or None
    handle : c_void_p
        The library's pointer to this codec. `set_options` replaces it.
    replaced : int
        How many handles of all codecs have been replaced.
    traits : Traits
    payload_bytes : int
        The maximum length of a payload.
    memory : tuple of int
        The number of elements of each array that error feedback keeps.
    momentum : int
        The number of elements of the momentum array, or 0.
    draws : int
        The number of draws from the random stream in each call that compresses.
    length_at : int or None
        For payloads of varying length, the offset of the length: a uint32 that counts the bytes
        from this offset on. None for payloads of fixed length.
    workspace_bytes : int
        The bytes of temporary memory that a call needs.

    Raises
    ------
    ValueError
        The compressor is unknown, or its options do not fit n elements.
    TypeError
        The dtype is neither float32 nor float64.
    """

    replaced: ClassVar[int] = 0
    _workspace: np.ndarray | None = None  # allocated at the first call

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        n: int,
        dtype: Any = "float32",
        isa: str | None = None,
        stream: int | None = None,
    ) -> None:
        self.n, self.dtype, self._name = n, np.dtype(dtype), name
        if self.dtype.name not in _ITEMSIZES:
            raise TypeError(f"dtype must be float32 or float64, got {self.dtype}")
        self._stream, self.isa = stream, isa
        self.handle, needs = self._new(options)
        self.traits = compressors()[name]
        self.payload_bytes = needs.payload_bytes
        arrays = 2 if needs.memory[1] else 1 if needs.memory[0] else 0
        self.memory = tuple(needs.memory[:arrays])
        self.momentum = needs.momentum
        self.draws = needs.draws
        self.length_at = needs.length_at if needs.length_at >= 0 else None
        self.workspace_bytes = needs.workspace_bytes

    def _new(self, options: Mapping[str, Any]) -> tuple[ctypes.c_void_p, Needs]:
        """Return the library's pointer to a new codec with these options, and its sizes."""
        handle, needs = ctypes.c_void_p(), Needs()
        name, text = self._name.encode(), as_text(options).encode()
        size = _ITEMSIZES[self.dtype.name]
        number = CUDA if self.isa == "cuda" else isa_number(self.isa)
        check(library.gluon_gc_new(name, text, self.n, size, number, ctypes.byref(handle)))
        library.gluon_gc_need(handle, ctypes.byref(needs))
        return handle, needs

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Use other options from now on. No call may run.

        Raises
        ------
        ValueError
            The options are not valid, or another size depends on them.
        """
        other = Codec(self._name, options, self.n, self.dtype, self.isa, self._stream)
        for name in _SIZES:
            before, after = getattr(self, name), getattr(other, name)
            if before != after:
                raise ValueError(f"options must not change {name} from {before}, got {after}")
        self.handle, other.handle = other.handle, self.handle  # `other` frees the earlier one
        Codec.replaced += 1

    def __reduce__(self) -> NoReturn:
        """Refuse copies, which would free `handle` twice."""
        raise TypeError("a Codec cannot be copied or pickled: make another one")

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            library.gluon_gc_free(self.handle)

    def state(self) -> State:
        """The state before the first call."""
        momentum = aligned_zeros(self.momentum, self.dtype) if self.momentum else None
        return State(momentum, tuple(aligned_zeros(size, self.dtype) for size in self.memory))

    def saved_layout(self) -> Layout:
        """Shape and dtype of each array that a checkpoint saves for this codec, by name.

        The names are "stream" (the state of the random stream), "residual" and "momentum". Arrays
        that the codec does not have are left out.
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
        """The length of a payload at the beginning of an array of uint8.

        Raises
        ------
        ValueError
            The length in the payload's header is larger than the array.
        """
        address = address_of("payload", payload, payload.size, np.uint8)
        used = library.gluon_gc_used(self.handle, address, payload.size)
        if used > payload.size:
            raise ValueError(
                f"payload must have {used} bytes, as its header says, got {payload.size}"
            )
        return used

    def rows(self, payloads: np.ndarray) -> dict[str, int]:
        """The fields of a `Call` for payloads that it reads.

        Parameters
        ----------
        payloads : array of uint8, shape (bytes,) or (count, bytes)
            Each row must be contiguous.
        """
        rows = payloads if payloads.ndim == 2 else payloads[None]
        count, size = rows.shape
        if size < self.payload_bytes:
            raise ValueError(
                f"payloads must have at least {self.payload_bytes} bytes each, got {size}"
            )
        address = address_of("payloads", rows[0], size, np.uint8) if count else 0
        return {"payloads": address, "stride": rows.strides[0], "count": count}

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
        factor: np.ndarray | None = None,
        ratio: float = 1.0,
        payload: np.ndarray | None = None,
        threads: int = 1,
        earlier: State | None = None,
    ) -> tuple[np.ndarray, Status]:
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

    def decompress(
        self,
        payloads: np.ndarray,
        position: Position = _START,
        *,
        out: np.ndarray | None = None,
        add: bool = False,
        threads: int = 1,
    ) -> tuple[np.ndarray, Status]:
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
            Whether to add to the values in `out`, which must be given.

        Returns
        -------
        out : array of T, shape (n,)
        status : Status

        Raises
        ------
        ValueError
            A payload cannot be decoded, or `add` is set without `out`.
        """
        if add and out is None:
            raise ValueError("add needs out, the values to add to; got None")
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
        state: State | None = None,
        earlier: State | None = None,
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
            codec=self.handle,
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


def addresses(codec: Codec, state: State) -> StateAddresses:
    """The addresses of a codec's state, in the form of the library. The caller keeps the arrays.

    Raises
    ------
    ValueError, TypeError
        The state has other arrays than the codec needs.
    """
    count, needed = len(state.memory), len(codec.memory)
    if count != needed:
        raise ValueError(f"memory must be {needed} arrays, got {count}")
    memory = (ctypes.c_void_p * 2)()
    for i, (array, size) in enumerate(zip(state.memory, codec.memory)):
        memory[i] = address_of("memory", array, size, codec.dtype, writes=True)
    momentum = address_of("momentum", state.momentum, codec.momentum, codec.dtype, writes=True)
    return StateAddresses(momentum, memory)
