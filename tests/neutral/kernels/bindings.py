"""Functions of the compiled library that only tests call."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from gluon_gc.kernels import Codec, Position, State, StateOfCall, Status, addresses, position
from gluon_gc.kernels.batch import StateReference
from gluon_gc.kernels.library import address_of, isa_number, library, output_of

_NOTHING, _START = State(), position()


def half_from_float(
    x: np.ndarray,
    scale: float = 1.0,
    *,
    out: np.ndarray | None = None,
    threads: int = 1,
    isa: str | None = None,
) -> np.ndarray:
    """``x * scale`` of a float32 array as float16, rounded to nearest, ties to even."""
    out = output_of("out", out, x.size, np.float16)
    library.gluon_gc_half_from_float(
        address_of("x", x, x.size, np.float32),
        x.size,
        scale,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out


def float_from_half(
    x: np.ndarray, *, out: np.ndarray | None = None, threads: int = 1, isa: str | None = None
) -> np.ndarray:
    """A float16 array as float32."""
    out = output_of("out", out, x.size, np.float32)
    library.gluon_gc_float_from_half(
        address_of("x", x, x.size, np.float16), x.size, out.ctypes.data, threads, isa_number(isa)
    )
    return out


def framed(words: np.ndarray, *, isa: str | None = None) -> bool:
    """Whether all uint32 words have the form that `frame` writes."""
    address = address_of("words", words, words.size, np.uint32)
    return bool(library.gluon_gc_framed(address, words.size, isa_number(isa)))


def draw(position: Position, n: int) -> np.ndarray:
    """The next n draws from a position. Array of uint64."""
    draws = np.empty(n, np.uint64)
    library.gluon_gc_draw(position, n, draws.ctypes.data)
    return draws


def valid(codec: Codec, payload: np.ndarray) -> bool:
    """Whether an array of uint8 begins with a payload that a codec can decode."""
    address = address_of("payload", payload, payload.size, np.uint8)
    return bool(library.gluon_gc_valid(codec.handle, address, payload.size))


def aggregate(
    codec: Codec,
    payloads: np.ndarray,
    state: State = _NOTHING,
    position: Position = _START,
    *,
    payload: np.ndarray | None = None,
    threads: int = 1,
    earlier: State | None = None,
) -> tuple[np.ndarray, Status]:
    """Decode payloads, add them in the order of their rows, and compress the sum.

    The rows have the shape (count, bytes). See `Codec.compress` for the other arguments and for the
    result. A payload that cannot be decoded is a ValueError.
    """
    payload = output_of("payload", payload, codec.payload_bytes, np.uint8)
    status = codec._run(
        "aggregate",
        state,
        scale=1.0,
        position=position,
        payload=payload.ctypes.data,
        threads=threads,
        earlier=earlier,
        **codec.rows(payloads),
    )
    return payload, status


def in_place(codecs: Sequence[Codec], states: Sequence[State]) -> list[StateOfCall]:
    """Return the states of a `Batch`'s call that updates them in place."""
    pairs = zip(codecs, states)
    return [StateReference(addresses(*pair)).in_place for pair in pairs]
