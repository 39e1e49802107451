"""The float-safe framing of bytes, and the sizes of messages of rows."""

from __future__ import annotations

import ctypes
from typing import Optional

import numpy as np

from .library import Rows, address_of, isa_number, library, output_of


def frame_words(nbytes: int) -> int:
    """The number of framed words for ``nbytes`` of payload."""
    return library.gluon_gc_frame_words(nbytes)


def frame_bytes(words: int) -> int:
    """The bytes of payload in this number of framed words, a multiple of 128."""
    return library.gluon_gc_frame_bytes(words)


def message_rows(nbytes: int, varies: bool, in_one: bool = False) -> Rows:
    """The rows of a framed message.

    Parameters
    ----------
    nbytes : int
        The most bytes of the message's parts.
    varies : bool
        Whether the length of the message varies. Such a message begins with its length, and travels
        in the rows that it fills.
    in_one : bool
        Whether the message always has one row of full length.

    Returns
    -------
    Rows
        The most `bytes` and `rows` of a message, and the `row_words` of each row.
    """
    rows = Rows()
    library.gluon_gc_message_rows(nbytes, varies, in_one, ctypes.byref(rows))
    return rows


def row_list_bytes(rows: int) -> int:
    """The most bytes of a list of rows of a tensor with this number of rows."""
    return library.gluon_gc_row_list_bytes(rows)


def rows_head_bytes(rows: int) -> int:
    """The bytes in front of the payload in a message of this number of compressed rows."""
    return library.gluon_gc_rows_head_bytes(rows)


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
