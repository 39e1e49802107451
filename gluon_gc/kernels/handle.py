"""A codec of the library: its sizes, and checks of its arguments."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from .library import (
    CUDA,
    Needs,
    StateAddresses,
    address_of,
    check,
    compressors,
    isa_number,
    library,
)
from .state import Layout, State, aligned_zeros, as_text

_ITEMSIZES = {"float32": 4, "float64": 8}


class CodecHandle:
    """A codec of the library, and the sizes of the memory that it needs.

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

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        n: int,
        dtype: Any = "float32",
        isa: Optional[str] = None,
        stream: Optional[int] = None,
    ) -> None:
        self.n, self.dtype, self._name = n, np.dtype(dtype), name
        if self.dtype.name not in _ITEMSIZES:
            raise TypeError(f"dtype must be float32 or float64, got {self.dtype}")
        self._stream, self.isa = stream, isa
        self._handle, needs = self._new(options)
        self.traits = compressors()[name]
        self.payload_bytes = needs.payload_bytes
        arrays = 2 if needs.memory[1] else 1 if needs.memory[0] else 0
        self.memory = tuple(needs.memory[:arrays])
        self.momentum = needs.momentum
        self.draws = needs.draws
        self.length_at = needs.length_at if needs.length_at >= 0 else None
        self.workspace_bytes = needs.workspace_bytes

    def _new(self, options: Mapping[str, Any]) -> Tuple[ctypes.c_void_p, Needs]:
        """Return the library's pointer to a new codec with these options, and its sizes."""
        handle, needs = ctypes.c_void_p(), Needs()
        name, text = self._name.encode(), as_text(options).encode()
        size = _ITEMSIZES[self.dtype.name]
        number = CUDA if self.isa == "cuda" else isa_number(self.isa)
        check(library.gluon_gc_new(name, text, self.n, size, number, ctypes.byref(handle)))
        library.gluon_gc_need(handle, ctypes.byref(needs))
        return handle, needs

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Use other options from now on. The sizes must not depend on them. No call may run."""
        before, (self._handle, _) = self._handle, self._new(options)
        library.gluon_gc_free(before)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            library.gluon_gc_free(self._handle)

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
        used = library.gluon_gc_used(self._handle, address, payload.size)
        if used > payload.size:
            raise ValueError(
                f"payload must have {used} bytes, as its header says, got {payload.size}"
            )
        return used

    def valid(self, payload: np.ndarray) -> bool:
        """Whether an array of uint8 begins with a payload that this codec can decode."""
        address = address_of("payload", payload, payload.size, np.uint8)
        return bool(library.gluon_gc_valid(self._handle, address, payload.size))

    @property
    def handle(self) -> ctypes.c_void_p:
        """The library's pointer to this codec."""
        return self._handle

    def rows(self, payloads: np.ndarray) -> Dict[str, int]:
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


def addresses(codec: CodecHandle, state: State) -> StateAddresses:
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
