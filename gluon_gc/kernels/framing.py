"""The float-safe framing of bytes, and its check."""

from __future__ import annotations

import ctypes
from typing import Optional

import numpy as np

from .library import Rows, address_of, isa_number, library, output_of


def frame_words(nbytes: int) -> int:
    """The number of framed words that carry ``nbytes`` of payload."""
    return library.gluon_gc_frame_words(nbytes)


def frame_bytes(words: int) -> int:
    """The bytes of payload that fill so many framed words, which must be whole blocks of 128."""
    return library.gluon_gc_frame_bytes(words)


def message_rows(nbytes: int, varies: bool, in_one: bool = False) -> Rows:
    """How a framed message lies in rows.

    Parameters
    ----------
    nbytes : int
        The most bytes of its parts.
    varies : bool
        Whether its length does. It then begins with that length, and takes only the rows that it
        fills.
    in_one : bool
        It has one row, however short it is.

    Returns
    -------
    Rows
        `bytes` of a message and its number of `rows`, both at most; `row_words` of each row.
    """
    rows = Rows()
    library.gluon_gc_message_rows(nbytes, varies, in_one, ctypes.byref(rows))
    return rows


def frame(
    payload: np.ndarray,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """The uint8 ``payload`` as uint32 words that are ordinary floats and survive a sum with 0.0."""
    out = output_of("out", out, frame_words(payload.size), np.uint32)
    library.gluon_gc_frame(
        address_of("payload", payload, payload.size, np.uint8),
        payload.size,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out


def unframe(
    words: np.ndarray,
    nbytes: int,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """The ``nbytes`` of uint8 payload that `frame` made uint32 ``words`` of."""
    out = output_of("out", out, nbytes, np.uint8)
    library.gluon_gc_unframe(
        address_of("words", words, frame_words(nbytes), np.uint32),
        nbytes,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out


def framed(words: np.ndarray, *, isa: Optional[str] = None) -> bool:
    """Whether all uint32 ``words`` are of the form that `frame` writes."""
    address = address_of("words", words, words.size, np.uint32)
    return bool(library.gluon_gc_framed(address, words.size, isa_number(isa)))
